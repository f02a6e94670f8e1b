"""Drafters compute more slowly than targets deliver: the queue is full and the targets wait for room."""

from __future__ import annotations

from typing import Final

from profiler.capacity import Loads, measure_loads
from profiler.finding import Evidence, Finding, Remedy
from profiler.rules.remedies import moved_device
from profiler.rules.verdicts import Case, Check, judge, nearly_full, quantity, queue_evidence, share, unjudged
from profiler.timeline import Timeline

cause: Final = "drafter-too-slow"


def cost(_timeline: Timeline, loads: Loads) -> float | None:
    """How much faster the targets are than the drafters' work alone: copies are another cause."""
    work = loads.drafter.seconds_per_token(loads.drafter.busy)
    forward = loads.target.seconds_per_token(loads.target.occupied)
    if not work or forward is None:
        return None
    return max(1.0 - max((forward, *loads.prefetch_pace)) / work, 0.0)


def check(timeline: Timeline) -> list[Finding]:
    """Supported when drafters, by their work alone, hold the targets up."""
    loads = measure_loads(timeline)
    if loads is None:
        return [unjudged(cause, timeline)]
    target, drafter = loads.target, loads.drafter
    knobs, bound = moved_device(timeline, loads, to_drafters=1)
    now = drafter.tokens_per_s
    pays = bound is not None and now is not None and bound > now
    case = Case(
        cause=cause,
        summary="Drafters compute more slowly than targets deliver",
        cost=cost(timeline, loads),
        checks=[
            Check(loads.drafters_limit, "the drafters do not hold the targets up"),
            Check(nearly_full(timeline, loads), "the queue to the drafters is not full most of the time"),
        ],
        evidence=[
            share("drafters working", drafter.busy),
            share("drafters copying", drafter.copies),
            share("targets waiting for room", target.wait("put q_hs")),
            queue_evidence(timeline, "q_hs", "high_share"),
            quantity("targets alone", target.alone_tokens_per_s, "tokens/s", "no forwards with tokens"),
            quantity("drafters alone", drafter.alone_tokens_per_s, "tokens/s", "no steps with tokens"),
            _split_evidence(knobs, bound),
        ],
        remedy=Remedy(
            f"Move a device from the targets to the drafters: pipeline.split={knobs['pipeline.split']}."
            if pays
            else "Make the drafters' step cheaper (fewer layers or anchors change the training signal), or "
            "add a drafter device: moving one from the targets would make those the limit.",
            knobs if pays else {},
        ),
        condition="by proportion, the targets that are left still outrun today's pace",
    )
    return [judge(case, timeline)]


def _split_evidence(knobs: dict[str, str | int | float], bound: float | None) -> Evidence | None:
    if not knobs:
        return None
    name = f"split {knobs['pipeline.split']} at most, by proportion"
    return quantity(name, bound, "tokens/s", "a stage's own pace is unknown")
