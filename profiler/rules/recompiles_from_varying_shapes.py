"""Stages compile again and again after warm-up: every new batch shape makes another program."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from profiler.capacity import Loads, StageLoad, measure_loads
from profiler.finding import Finding, Remedy
from profiler.rules.verdicts import Case, Check, judge, quantity, seconds, share, unjudged
from profiler.timeline import Timeline

cause: Final = "recompiles-from-varying-shapes"
_untold: Final = "torch's compiler was not in use, or does not count it"
_most: Final = 0.9  # of the range: what goes on so long holds over all of it
many_recompiles: Final = 5  # after warm-up, over all stages; a straggler or two are no pattern


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


def _range_s(timeline: Timeline) -> float:
    return timeline.range_s[1] - timeline.range_s[0]


def compiling_share(timeline: Timeline, load: StageLoad) -> float:
    """Share of a stage's time in the steady range, over all its threads."""
    mine = timeline.compiles[timeline.compiles["stage"] == load.stage]
    return float(mine["seconds"].sum()) / (load.threads * load.range_s)


def check(timeline: Timeline) -> list[Finding]:
    """Supported when compiling after warm-up costs throughput and is done again and again."""
    loads = measure_loads(timeline)
    if loads is None:
        return [unjudged(cause, timeline)]
    compiles, stretch = timeline.compiles, timeline.compile_stretch
    slower = None if stretch is None else stretch.lost_share
    again, spent_s = float(compiles["recompiles"].sum()), float(compiles["seconds"].sum())
    count = int(compiles["compiles"].sum())
    case = Case(
        cause=cause,
        summary="Stages compile anew for every batch shape they meet",
        cost=cost(timeline, loads),
        checks=[
            Check(
                again >= many_recompiles,
                f"only {again:.0f} recompilations after warm-up: no pattern of shapes",
            )
        ],
        evidence=[
            share("targets compiling", compiling_share(timeline, loads.target)),
            share("drafters compiling", compiling_share(timeline, loads.drafter)),
            quantity("recompilations after warm-up", again, ""),
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
