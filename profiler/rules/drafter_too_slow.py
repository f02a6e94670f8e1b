"""Drafters compute more slowly than targets deliver: the queue is full and the targets wait for room."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from profiler.capacity import Loads, measure_loads
from profiler.cpu_waits import cpu_wait
from profiler.device_places import places_of
from profiler.finding import Evidence, Finding, Remedy, Scalar
from profiler.rules import per_step_scalar_sync
from profiler.rules.remedies import moved_device, moved_device_rate
from profiler.rules.verdicts import (
    Case,
    Check,
    judge,
    named_cost_share,
    nearly_full,
    percent,
    quantity,
    queue_evidence,
    share,
    unjudged,
)
from profiler.timeline import Timeline

cause: Final = "drafter-too-slow"
step_work: Final = ("forward", "backward", "sum", "optimizer", "load", "compile")


def cost(timeline: Timeline, loads: Loads) -> float | None:
    """How much faster targets are than the drafters' work alone: copies and waits are other causes.

    Of targets the waits for the GIL do not count either: work is set against work. Drafters that would keep
    up if nobody had to wait for a CPU are not slow: that is a matter of the machine. Nor are those that share
    all their devices with the targets: nothing idles there for them.
    """
    if places_of(timeline).all_shared:
        return 0.0
    target, drafter = loads.target, loads.drafter
    occupied = target.occupied - target.gil_wait
    alone = drafter.busy - per_step_scalar_sync.waited(timeline, drafter)
    lost = _lost(loads, occupied, alone)
    without_cpu = [cpu_wait(timeline, load) or 0.0 for load in (target, drafter)]
    own = _lost(loads, occupied - without_cpu[0], alone - without_cpu[1])
    return lost if lost is None or own is None or own > 0 else 0.0


def _lost(loads: Loads, target_share: float, drafter_share: float) -> float | None:
    """Share of the throughput, where these shares of their time are the stages' work."""
    work = loads.drafter.seconds_per_token(drafter_share)
    forward = loads.target.seconds_per_token(target_share)
    if not work or forward is None:
        return None
    return max(1.0 - max((forward, *loads.prefetch_pace)) / work, 0.0)


def side_work(timeline: Timeline) -> list[tuple[str, float]]:
    """Work of drafters that is no part of a step, with its share of their time, where it is worth naming."""
    mine = timeline.devices[timeline.devices["stage"] == "drafter"]
    total = float(mine["ns"].sum())
    work = mine[(mine["kind"] == "work") & ~mine["name"].isin(step_work)].groupby("name")["ns"].sum()
    return [(str(name), float(ns) / total) for name, ns in work.items() if ns >= named_cost_share * total]


def check(timeline: Timeline) -> list[Finding]:
    """Supported when drafters, by their work alone, hold the targets up."""
    loads = measure_loads(timeline)
    if loads is None:
        return [unjudged(cause, timeline)]
    target, drafter = loads.target, loads.drafter
    knobs, bound = moved_device(timeline, loads, to_drafters=1)
    if timeline.config is None:
        bound = moved_device_rate(loads, to_drafters=1)
    now, side = drafter.tokens_per_s, side_work(timeline)
    pays = bound is not None and now is not None and bound > now
    case = Case(
        cause=cause,
        summary="Drafters compute more slowly than targets deliver",
        cost=cost(timeline, loads),
        checks=[
            Check(
                not places_of(timeline).all_shared,
                "targets have the same devices and use what drafters leave",
            ),
            Check(loads.drafters_limit, "the drafters do not hold the targets up"),
            Check(nearly_full(timeline, loads), "the queue to the drafters is not full most of the time"),
        ],
        evidence=[
            share("drafters working", drafter.busy),
            share("drafters ready to run, without a CPU", cpu_wait(timeline, drafter), "not sampled"),
            share("drafters copying", drafter.copies),
            *(share(f"drafters in {name}", part) for name, part in side),
            share("targets waiting for room", target.wait("put q_hs")),
            queue_evidence(timeline, "q_hs", "high_share"),
            quantity("targets alone", target.alone_tokens_per_s, "tokens/s", "no forwards with tokens"),
            quantity("drafters alone", drafter.alone_tokens_per_s, "tokens/s", "no steps with tokens"),
            _split_evidence(knobs, bound),
        ],
        remedy=_remedy(side, knobs, pays=pays),
        condition="by proportion, the targets that are left still outrun today's pace",
    )
    return [judge(case, timeline)]


_seldom: Final = {  # of our own trainer
    "checkpoint": " (raise run.checkpoint_every)",
    "evaluate": " (raise run.evaluate_every)",
}


def _remedy(side: list[tuple[str, float]], knobs: dict[str, Scalar], *, pays: bool) -> Remedy:
    first = "".join(
        f"Take {name} off the drafters' thread, or do it less often{_seldom.get(name, '')}. "
        for name, _ in side
    )
    if not pays:
        return Remedy(
            f"{first}Make the drafters' step cheaper (fewer layers or anchors change the training signal), "
            "or add a drafter device: moving one from the targets would make those the limit."
        )
    move = f"{first}Move a device from the targets to the drafters"
    if not knobs:
        return Remedy(f"{move}, or make the drafters' step cheaper.")
    return Remedy(f"{move}: pipeline.split={knobs['pipeline.split']}.", knobs)


def with_split(finding: Finding, split: str, gain: float) -> Finding:
    """The finding with a remedy that a forecast has chosen: another split, over other devices too."""
    spared = finding.remedy.text.partition("Make the")[0].partition("Move a")[0] if finding.remedy else ""
    text = (
        f"{spared}Give the drafters more devices: of the splits that are possible, pipeline.split={split} is "
        f"forecast to help most with fewest devices, by {percent(gain)}."
    )
    return replace(
        finding,
        remedy=Remedy(text, {"pipeline.split": split}),
        condition="the forecast holds, and the devices it counts on are free",
    )


def _split_evidence(knobs: dict[str, Scalar], bound: float | None) -> Evidence | None:
    if not knobs:
        return None
    name = f"split {knobs['pipeline.split']} at most, by proportion"
    return quantity(name, bound, "tokens/s", "a stage's own pace is unknown")
