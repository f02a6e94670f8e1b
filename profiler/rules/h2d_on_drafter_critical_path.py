"""Drafters copy every batch from host memory on their own thread, with a short queue before them."""

from __future__ import annotations

from typing import Final

from profiler.capacity import measure_loads
from profiler.copy_times import host_paths
from profiler.finding import Finding, Remedy
from profiler.rules.host_copies import apart_from_host, copy_evidence, cost, is_deep, waiting_items
from profiler.rules.remedies import declared_copy_s, peer_transport
from profiler.rules.verdicts import Case, Check, judge, quantity, queue_evidence, share, unjudged
from profiler.timeline import Timeline

cause: Final = "h2d-on-drafter-critical-path"


def check(timeline: Timeline) -> list[Finding]:
    """Supported when drafters hold the targets up by copying; a deep queue is another cause."""
    loads = measure_loads(timeline)
    if loads is None:
        return [unjudged(cause, timeline)]
    target, drafter = loads.target, loads.drafter
    predicted_s, unpredicted = declared_copy_s(timeline, "drafter", host_paths)
    deep = is_deep(timeline)
    case = Case(
        cause=cause,
        summary="Drafters copy each batch from host memory on their own thread before they can train",
        cost=cost(timeline, loads),
        checks=[
            Check(loads.drafters_limit, "the drafters do not hold the targets up"),
            Check(drafter.host_copies > 0, "drafters copy nothing from host memory"),
            apart_from_host(timeline),
            Check(
                None if deep is None else not deep,
                "the queue in host memory is deep: see host-staging-queue-too-deep",
            ),
        ],
        evidence=[
            *copy_evidence(timeline, loads, "drafter"),
            share("targets waiting for room", target.wait("put q_hs")),
            queue_evidence(timeline, "q_hs", "high_share"),
            quantity("batches waiting", waiting_items(timeline), "", "depths were not recorded"),
        ],
        remedy=Remedy(
            "Copy between devices, ahead of need: transport.preset=peer. Where devices cannot reach each "
            "other: transport.preset=pinned, which copies beside the computation.",
            peer_transport(timeline),
        ),
        condition="drafters without these copies keep up with the targets",
        predicted_cost_s=predicted_s,
        predicted_cost_reason=unpredicted,
    )
    return [judge(case, timeline)]
