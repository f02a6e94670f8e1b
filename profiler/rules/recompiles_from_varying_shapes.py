"""Stages compile again and again after warm-up: every new batch shape makes another program."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from profiler.capacity import Loads, StageLoad, measure_loads
from profiler.finding import Finding, Remedy
from profiler.rules.verdicts import (
    Case,
    Check,
    judge,
    named_cost_share,
    percent,
    quantity,
    seconds,
    share,
    unjudged,
)
from profiler.timeline import Timeline

cause: Final = "recompiles-from-varying-shapes"
_untold: Final = "torch's compiler was not in use, or does not count it"
_most: Final = 0.9  # of the range: what goes on so long holds over all of it
_tail: Final = 1.28  # standard errors: one time in ten the cost of what goes on so is less than that below
least_sure_cost: Final = named_cost_share / 2  # of the throughput, that far below; stragglers are no pattern


def cost(timeline: Timeline, loads: Loads) -> float | None:
    """What compiling costs while it goes on.

    The time that stages spend on it, or, where that is more, what windows with a compilation lose: stages
    that do not compile may wait for the one that does.
    """
    stretch = timeline.compile_stretch
    longer = 1.0 if stretch is None else _range_s(timeline) / stretch.length_s
    spent = [min(compiling_share(timeline, load) * longer, 1.0) for load in (loads.target, loads.drafter)]
    lost = loads.lost_share(target=spent[0], drafter=spent[1])
    told = None if stretch is None else stretch.lost_share
    return lost if told is None else max(lost or 0.0, told)


def sure_cost(timeline: Timeline, lost: float | None) -> float | None:
    """What compiling costs at least if it goes on so; None where nothing was compiled or no cost is known.

    Two programs that were compiled late cost what they cost, and may be the last; by how evenly the time is
    spread over the range one can tell.
    """
    if lost is None or timeline.compile_scatter is None:
        return None
    return lost * max(1.0 - _tail * timeline.compile_scatter, 0.0)


def _range_s(timeline: Timeline) -> float:
    return timeline.range_s[1] - timeline.range_s[0]


def compiling_share(timeline: Timeline, load: StageLoad) -> float:
    """Share of a stage's time in the steady range, over all its threads."""
    mine = timeline.compiles[timeline.compiles["stage"] == load.stage]
    return float(mine["seconds"].sum()) / (load.threads * load.range_s)


def check(timeline: Timeline) -> list[Finding]:
    """Supported when compiling after warm-up costs throughput and is spread so that more is to come."""
    loads = measure_loads(timeline)
    if loads is None:
        return [unjudged(cause, timeline)]
    compiles, stretch = timeline.compiles, timeline.compile_stretch
    slower = None if stretch is None else stretch.lost_share
    again, spent_s = float(compiles["recompiles"].sum()), float(compiles["seconds"].sum())
    count = int(compiles["compiles"].sum())
    lost = cost(timeline, loads)
    sure = sure_cost(timeline, lost)
    case = Case(
        cause=cause,
        summary="Stages compile anew for every batch shape they meet",
        cost=lost,
        checks=[
            Check(again >= 1, "nothing was compiled anew after warm-up"),
            Check(
                (sure or 0.0) >= least_sure_cost,
                "compiling fell into few parts of the time, and may have been the last: "
                f"sure is a cost of {percent(sure or 0.0)}",
            ),
        ],
        evidence=[
            share("targets compiling", compiling_share(timeline, loads.target)),
            share("drafters compiling", compiling_share(timeline, loads.drafter)),
            quantity("recompilations after warm-up", again, ""),
            share("lost at least, if it goes on so", sure, "nothing was compiled after warm-up"),
            seconds("compiling after warm-up, all threads", spent_s),
            share("slower than windows without one", slower, "there are too few of either to compare"),
            seconds("one compilation", spent_s / count if count else None, "none after warm-up"),
            seconds("timing kernels to choose from, all threads", timeline.tuning_s, _untold),
        ],
        remedy=Remedy(
            "Compile with dynamic=True, or pad batches to a few lengths (buckets), so that a handful of "
            "programs serves all batches; or do not compile the part whose shapes vary."
        ),
        condition="shapes go on varying; compilations of the first steps are warm-up and are not counted",
    )
    finding = judge(case, timeline)
    if finding.supported and stretch is not None and stretch.length_s < _most * _range_s(timeline):
        return [replace(finding, range_s=(stretch.begin_s, stretch.end_s))]
    return [finding]
