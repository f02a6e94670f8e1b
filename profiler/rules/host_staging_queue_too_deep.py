"""A deep queue in host memory before slow copies to the drafters: memory piles up and hides nothing."""

from __future__ import annotations

from typing import Final

from profiler.capacity import measure_loads
from profiler.copy_times import host_paths
from profiler.finding import Finding, Remedy
from profiler.rules.host_copies import apart_from_host, copy_evidence, cost, is_deep, memory_evidence
from profiler.rules.remedies import declared_copy_s, peer_transport
from profiler.rules.verdicts import Case, Check, judge, nearly_full, queue_evidence, share, unjudged
from profiler.timeline import Timeline

cause: Final = "host-staging-queue-too-deep"


def check(timeline: Timeline) -> list[Finding]:
    """Supported when drafters copy from host memory before computing, while many batches wait there."""
    loads = measure_loads(timeline)
    if loads is None:
        return [unjudged(cause, timeline)]
    target, drafter = loads.target, loads.drafter
    predicted_s, unpredicted = declared_copy_s(timeline, "drafter", host_paths)
    case = Case(
        cause=cause,
        summary="Batches pile up in host memory while drafters copy each to their device before training",
        cost=cost(timeline, loads),
        checks=[
            Check(loads.drafters_limit, "the drafters do not hold the targets up"),
            Check(drafter.host_copies > 0, "drafters copy nothing from host memory"),
            apart_from_host(timeline),
            Check(is_deep(timeline), "few batches wait in host memory"),
            Check(nearly_full(timeline, loads), "the queue is not full most of the time"),
        ],
        evidence=[
            *copy_evidence(timeline, loads, "drafter"),
            share("targets waiting for room", target.wait("put q_hs")),
            queue_evidence(timeline, "q_hs", "high_share"),
            *memory_evidence(timeline),
        ],
        remedy=Remedy(
            "Keep one or two batches per drafter on its own device, sent to the emptiest queue by peer "
            "copies. Where devices cannot reach each other: transport.preset=pinned with depth 2. A deeper "
            "queue only costs memory.",
            peer_transport(timeline),
        ),
        condition="drafters without these copies keep up with the targets, and devices hold two batches more",
        predicted_cost_s=predicted_s,
        predicted_cost_reason=unpredicted,
    )
    return [judge(case, timeline)]
