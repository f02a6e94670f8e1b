"""Drafters wait for each other at the end of every window: it holds too few batches to share out evenly."""

from __future__ import annotations

from typing import Final

from dflash.contract.errors import ConfigError
from profiler.capacity import Loads, measure_loads
from profiler.finding import Finding, Remedy, Scalar
from profiler.rules.verdicts import Case, Check, judge, quantity, share, unjudged
from profiler.timeline import Timeline

cause: Final = "gradient-sync-wait"


def cost(_timeline: Timeline, loads: Loads) -> float | None:
    """The drafters' wait for each other, as far as the targets could have gone on in that time."""
    target, drafter = loads.target, loads.drafter
    forward = target.seconds_per_token(target.occupied)
    step = drafter.seconds_per_token(drafter.occupied)
    wait = drafter.seconds_per_token(drafter.wait("window_wait"))
    if forward is None or step is None or wait is None:
        return None
    return max(1.0 - max(forward, step) / max(forward, step + wait), 0.0)


def check(timeline: Timeline) -> list[Finding]:
    """Supported when that wait holds the targets up."""
    loads = measure_loads(timeline)
    if loads is None:
        return [unjudged(cause, timeline)]
    target, drafter = loads.target, loads.drafter
    each = _batches_each(timeline, loads)
    case = Case(
        cause=cause,
        summary="Drafters wait for each other at the end of every window",
        cost=cost(timeline, loads),
        checks=[
            Check(drafter.threads > 1, "there is one drafter"),
            Check(loads.drafters_limit, "the drafters do not hold the targets up"),
        ],
        evidence=[
            share("drafters waiting for each other", drafter.wait("window_wait")),
            share("drafters working", drafter.busy),
            quantity(
                "batches of a window for each drafter", each, "", "windows or batches were not recorded"
            ),
            share("targets waiting for room", target.wait("put q_hs")),
        ],
        remedy=Remedy(
            "Cut windows into more batches, so that drafters end together: a smaller pipeline.token_budget. "
            "Or use fewer drafters.",
            _smaller_batches(timeline),
        ),
        condition="a window holds few batches for each drafter, and smaller ones keep the devices full",
    )
    return [judge(case, timeline)]


def _batches_each(timeline: Timeline, loads: Loads) -> float | None:
    lo_ns, hi_ns = timeline.range_ns
    windows = int(timeline.windows["end_ns"].between(lo_ns, hi_ns, inclusive="right").sum())
    return loads.drafter.batches / windows / loads.drafter.threads if windows else None


def _smaller_batches(timeline: Timeline) -> dict[str, Scalar]:
    """Half the budget, where the configuration allows it."""
    if timeline.config is None:
        return {}
    knobs: dict[str, Scalar] = {"pipeline.token_budget": timeline.config.pipeline.token_budget // 2}
    try:
        timeline.config.replacing(knobs)
    except ConfigError:  # documents would no longer fit
        return {}
    return knobs
