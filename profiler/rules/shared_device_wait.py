"""A role waits for a device that it shares with the other, while some other device has time to spare."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from profiler.capacity import Loads, measure_loads
from profiler.device_places import idlest_device, places_of
from profiler.finding import Finding, Remedy
from profiler.rules.verdicts import Case, Check, judge, named_cost_share, percent, share, unjudged
from profiler.timeline import Timeline

cause: Final = "shared-device-wait"


def cost(timeline: Timeline, loads: Loads) -> float | None:
    """What the slowest stage waits for devices that it shares; 0 where both roles have the same ones."""
    if not places_of(timeline).partly_shared:
        return 0.0
    return loads.lost_share(
        target=loads.target.wait("device_wait"), drafter=loads.drafter.wait("device_wait")
    )


def check(timeline: Timeline) -> list[Finding]:
    """Supported when work could go to a device that has time for it."""
    loads = measure_loads(timeline)
    if loads is None:
        return [unjudged(cause, timeline)]
    idlest = idlest_device(timeline)
    case = Case(
        cause=cause,
        summary="Roles wait for a device that they share while another one has time to spare",
        cost=cost(timeline, loads),
        checks=[
            Check(places_of(timeline).partly_shared, "no device is shared, or all are"),
            Check(idlest is None or idlest[1] <= 1 - named_cost_share, "every device works all the time"),
        ],
        evidence=[
            share("targets waiting for their device", loads.target.wait("device_wait")),
            share("drafters waiting for their device", loads.drafter.wait("device_wait")),
            None if idlest is None else share(f"{idlest[0]} at work", idlest[1]),
        ],
        remedy=Remedy("Give each role devices of its own, or give every device both roles."),
        condition="the split that is left keeps both roles supplied",
    )
    return [judge(case, timeline)]


def with_split(finding: Finding, split: str, gain: float) -> Finding:
    """The finding with the split that a forecast has chosen."""
    text = (
        f"Share devices otherwise: of the splits that are possible, pipeline.split={split} is forecast to "
        f"help most with fewest devices, by {percent(gain)}."
    )
    return replace(finding, remedy=Remedy(text, {"pipeline.split": split}), condition="the forecast holds")
