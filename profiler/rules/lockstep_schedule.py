"""Targets and drafters take turns: while one stage computes, the devices of the other stand still."""

from __future__ import annotations

from typing import Final

from profiler.capacity import Loads, StageLoad, measure_loads, seldom
from profiler.device_places import places_of
from profiler.finding import Finding, Remedy, Scalar
from profiler.rules.verdicts import Case, Check, judge, share, unjudged
from profiler.timeline import Timeline

cause: Final = "lockstep-schedule"
_hardly: Final = 0.1  # of the time of the stage that works less


def cost(timeline: Timeline, loads: Loads) -> float | None:
    """What the slowest stage waits for its turn and for batches of the round, as far as prefetch could go on.

    None when a pace is unknown. Where both stages have the same devices, what these idle.
    """
    places = places_of(timeline)
    if not _takes_turns(timeline, loads):
        return 0.0
    if places.all_shared:
        occupied = sum(load.occupied * load.threads for load in (loads.target, loads.drafter))
        return max(1.0 - occupied / places.both, 0.0)
    stages = (loads.target, loads.drafter)
    paces = [(pace, load) for load in stages if (pace := load.seconds_per_token(load.occupied)) is not None]
    if len(paces) < len(stages):
        return None
    pace, slowest = max(paces, key=lambda pair: pair[0])
    whole = slowest.seconds_per_token(1.0)
    if not whole:
        return None
    idle = 1.0 - max(pace, *loads.prefetch_pace, 0.0) / whole
    return max(min(idle, _awaits_other(slowest)), 0.0)


def check(timeline: Timeline) -> list[Finding]:
    """Supported when both stages wait for each other and are never at work together."""
    loads = measure_loads(timeline)
    if loads is None:
        return [unjudged(cause, timeline)]
    target, drafter = loads.target, loads.drafter
    case = Case(
        cause=cause,
        summary="Targets and drafters take turns: while one side computes, the other side's devices idle",
        cost=cost(timeline, loads),
        checks=[
            Check(_both_wait(loads), "not both sides wait for the other"),
            Check(_takes_turns(timeline, loads), "targets and drafters are at work at the same time"),
        ],
        evidence=[
            share("targets waiting for drafters", _awaits_other(target)),
            share("drafters waiting for targets", _awaits_other(drafter)),
            share("both at work, of the shorter side's work", timeline.together, "one side did no work"),
            share("targets working", target.busy),
            share("drafters working", drafter.busy),
        ],
        remedy=Remedy(
            "Let targets forward the next batches while drafters train on the last ones.",
            _overlapped(timeline),
        ),
        condition="devices have room for the batches that then wait between the stages",
    )
    return [judge(case, timeline)]


def _both_wait(loads: Loads) -> bool:
    return min(_awaits_other(loads.target), _awaits_other(loads.drafter)) >= seldom


def _takes_turns(timeline: Timeline, loads: Loads) -> bool:
    return _both_wait(loads) and timeline.together is not None and timeline.together <= _hardly


def _awaits_other(load: StageLoad) -> float:
    return load.wait("barrier") + load.wait("get q_hs") + load.wait("put q_hs")


def _overlapped(timeline: Timeline) -> dict[str, Scalar]:
    """The schedule without turns, where the configuration is known to have chosen turns."""
    config = timeline.config
    if config is None or config.pipeline.schedule != "lockstep":
        return {}
    return {"pipeline.schedule": "overlapped"}
