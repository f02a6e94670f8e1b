"""Targets wait for input: q_pre is empty, its producer cannot keep up."""

from __future__ import annotations

from typing import Final

from profiler.capacity import Loads, StageLoad, measure_loads
from profiler.finding import Evidence, Finding, Remedy
from profiler.rules.verdicts import (
    Case,
    Check,
    is_mostly,
    judge,
    quantity,
    queue_evidence,
    queue_share,
    share,
    unjudged,
)
from profiler.timeline import Timeline

cause: Final = "prefetch-starvation"


def cost(_timeline: Timeline, loads: Loads) -> float | None:
    """The wait for q_pre, as far as nobody else would have held the targets up in that time."""
    return min(loads.target.wait("get q_pre"), loads.drafter.waiting)


def check(timeline: Timeline) -> list[Finding]:
    """Supported when targets wait on an empty q_pre while drafters wait for them."""
    loads = measure_loads(timeline)
    if loads is None:
        return [unjudged(cause, timeline)]
    target, prefetch = loads.target, loads.prefetch
    lost = cost(timeline, loads)
    case = Case(
        cause=cause,
        summary="Targets starve: batches are packed more slowly than the targets take them",
        cost=lost,
        checks=[
            Check(
                is_mostly(queue_share(timeline, "q_pre", "low_share")), "q_pre is not empty most of the time"
            ),
        ],
        evidence=[
            share("targets waiting for q_pre", target.wait("get q_pre")),
            share("targets working", target.busy),
            queue_evidence(timeline, "q_pre", "low_share"),
            *_prefetch_evidence(prefetch),
        ],
        remedy=Remedy(
            "Make packing cheaper: tokenise ahead of time, pad less, put the data on a local disk, give "
            "prefetch a core of its own or more loader threads. A deeper q_pre only smooths bursts; a deeper "
            "q_hs does nothing."
        ),
        condition="prefetch works nearly all of the time; if it waits itself, look at what it reads from",
    )
    return [judge(case, timeline)]


def _prefetch_evidence(prefetch: StageLoad | None) -> list[Evidence]:
    reason = "prefetch left no spans"
    busy, alone = (None, None) if prefetch is None else (prefetch.busy, prefetch.alone_tokens_per_s)
    return [share("prefetch working", busy, reason), quantity("prefetch alone", alone, "tokens/s", reason)]
