"""Targets and drafters take turns: while one stage computes, the devices of the other stand still."""

from __future__ import annotations

from typing import Final

from profiler.capacity import Loads, StageLoad, measure_loads, seldom
from profiler.device_places import places_of
from profiler.finding import Finding, Remedy, Scalar
from profiler.rules.verdicts import Case, Check, judge, share, unjudged
from profiler.timeline import Timeline

cause: Final = "lockstep-schedule"
_both_at_once: Final = 1.1  # occupied shares of both stages, added: in turns it is 1 at most


def cost(timeline: Timeline, loads: Loads) -> float | None:
    """What the slowest stage waits for its turn and for batches of the round, as far as prefetch could go on.

    None when a pace is unknown. Where both stages have the same devices, what these idle.
    """
    places = places_of(timeline)
    if not _takes_turns(loads):
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
    """Supported when both stages wait at the barrier between them, on devices of their own."""
    loads = measure_loads(timeline)
    if loads is None:
        return [unjudged(cause, timeline)]
    target, drafter = loads.target, loads.drafter
    case = Case(
        cause=cause,
        summary="Targets and drafters take turns: while one side computes, the other side's devices idle",
        cost=cost(timeline, loads),
        checks=[
            Check(_at_barrier(loads) >= seldom, "no barrier between forwards and steps holds both sides up"),
            Check(_takes_turns(loads), "targets and drafters are at work at the same time"),
        ],
        evidence=[
            share("targets waiting for their turn", target.wait("barrier")),
            share("drafters waiting for their turn", drafter.wait("barrier")),
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


def _at_barrier(loads: Loads) -> float:
    return min(loads.target.wait("barrier"), loads.drafter.wait("barrier"))


def _takes_turns(loads: Loads) -> bool:
    together = loads.target.occupied + loads.drafter.occupied
    return _at_barrier(loads) >= seldom and together <= _both_at_once


def _awaits_other(load: StageLoad) -> float:
    return load.wait("barrier") + load.wait("get q_hs") + load.wait("put q_hs")


def _overlapped(timeline: Timeline) -> dict[str, Scalar]:
    """The schedule without turns, where the configuration is known to have chosen turns."""
    config = timeline.config
    if config is None or config.pipeline.schedule != "lockstep":
        return {}
    return {"pipeline.schedule": "overlapped"}
