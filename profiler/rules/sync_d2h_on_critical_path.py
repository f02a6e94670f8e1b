"""Targets copy hidden states to host memory on their own thread: the next forward waits for the copy."""

from __future__ import annotations

from typing import Final

from profiler.capacity import measure_loads
from profiler.copy_times import host_paths
from profiler.finding import Finding, Remedy
from profiler.rules import host_copies
from profiler.rules.host_copies import apart_from_host, copy_evidence
from profiler.rules.remedies import declared_copy_s, peer_transport
from profiler.rules.verdicts import Case, Check, judge, nearly_full, queue_evidence, share, unjudged
from profiler.timeline import Timeline

cause: Final = "sync-d2h-on-critical-path"


def packing_share(timeline: Timeline) -> float | None:
    """The targets' time that goes into gathering hidden states for the send; None when it was not told."""
    mine = timeline.devices[timeline.devices["stage"] == "target"]
    gathers = mine[mine["name"] == "gather"]
    return float(gathers["ns"].sum() / mine["ns"].sum()) if len(gathers) else None


def check(timeline: Timeline) -> list[Finding]:
    """Supported when the targets' own copies take their time and drafters wait for them."""
    loads = measure_loads(timeline)
    if loads is None:
        return [unjudged(cause, timeline)]
    target, drafter = loads.target, loads.drafter
    predicted_s, unpredicted = declared_copy_s(timeline, "target", host_paths)
    full = nearly_full(timeline, loads)
    case = Case(
        cause=cause,
        summary="Targets stand still while their own thread copies hidden states to host memory",
        cost=host_copies.cost(timeline, loads),
        checks=[
            Check(
                target.host_copies > 0,
                "targets copy nothing to host memory themselves",
            ),
            Check(not loads.drafters_limit, "the drafters hold the targets up, not the other way round"),
            apart_from_host(timeline),
            Check(None if full is None else not full, "the queue to the drafters is full"),
        ],
        evidence=[
            *copy_evidence(timeline, loads, "target"),
            share("targets packing", packing_share(timeline), "no spans of packing"),
            share("drafters waiting for targets", drafter.wait("get q_hs"), "no spans of drafters"),
            share("targets waiting for room", target.wait("put q_hs")),
            queue_evidence(timeline, "q_hs", "low_share"),
        ],
        remedy=Remedy(
            "Take the copy off the target's thread: from device to device beside the next forward "
            "(transport.preset=peer), or, where devices cannot reach each other, into pinned buffers on a "
            "copy stream with an event (transport.preset=pinned). Pack in one vectorised operation.",
            peer_transport(timeline),
        ),
        condition="the device has room for a second send buffer, and drafters keep up with faster targets",
        predicted_cost_s=predicted_s,
        predicted_cost_reason=unpredicted,
    )
    return [judge(case, timeline)]
