"""One queue for several drafters: they take batches that live on another device, and move them first."""

from __future__ import annotations

from typing import Final

from profiler.capacity import Loads, measure_loads
from profiler.finding import Finding, Remedy
from profiler.rules.remedies import copy_rate, declared_copy_s, peer_transport
from profiler.rules.verdicts import (
    Case,
    Check,
    away_share,
    judge,
    nearly_full,
    quantity,
    queue_evidence,
    seconds,
    share,
    unjudged,
)
from profiler.timeline import Timeline

cause: Final = "shared-queue-cross-device"


def away_takes(timeline: Timeline) -> tuple[float, float]:
    """Takes that moved a batch from another drafter's device, and takes whose place is known."""
    takes = timeline.takes
    known = takes[takes["where"].isin(["home", "away"])]
    return float(known.loc[known["where"] == "away", "takes"].sum()), float(known["takes"].sum())


def cost(timeline: Timeline, loads: Loads) -> float | None:
    """The drafters' own copies between devices, as far as away takes caused them."""
    away, known = away_takes(timeline)
    copies = timeline.copies
    moved = float(copies.loc[(copies["stage"] == "drafter") & (copies["path"] == "peer"), "copies"].sum())
    caused = min(away / moved, 1.0) if moved and known else 1.0
    return loads.lost_share(drafter=loads.drafter.peer_copies * caused)


def check(timeline: Timeline) -> list[Finding]:
    """Supported when away takes, their copies and a full queue come together."""
    loads = measure_loads(timeline)
    if loads is None:
        return [unjudged(cause, timeline)]
    target, drafter = loads.target, loads.drafter
    away, known = away_takes(timeline)
    wrong = away / known if known else None
    copy_s, rate = copy_rate(timeline, "drafter", ("peer",))
    predicted_s, unpredicted = declared_copy_s(timeline, "drafter", ("peer",))
    moving = drafter.peer_copies
    case = Case(
        cause=cause,
        summary="Drafters take batches that live on another drafter's device and must move them first",
        cost=cost(timeline, loads),
        checks=[
            Check(None if wrong is None else wrong >= away_share, "nearly all takes are at home"),
            Check(loads.drafters_limit, "the drafters do not hold the targets up"),
            Check(nearly_full(timeline, loads), "the queue is not full most of the time"),
        ],
        evidence=[
            share("takes from another device", wrong, "no take says where its batch lived"),
            share("drafters moving batches", moving),
            seconds("one move", copy_s, "no copies on the drafters' path"),
            quantity("link while moving", rate, "GB/s", "no copies with bytes on the drafters' path"),
            share("drafters working", drafter.busy),
            share("targets waiting for room", target.wait("put q_hs")),
            queue_evidence(timeline, "q_hs", "high_share"),
        ],
        remedy=Remedy(
            "Give every drafter a queue of its own and send to the emptiest: the move is then hidden behind "
            "the next forward.",
            peer_transport(timeline),
        ),
        condition="there are two drafters or more, and peer copies between the devices are correct",
        predicted_cost_s=predicted_s,
        predicted_cost_reason=unpredicted,
    )
    return [judge(case, timeline)]
