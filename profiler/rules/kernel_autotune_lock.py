"""Kernels are timed to choose from while training runs: the tuner's lock keeps every other thread out."""

from __future__ import annotations

from typing import Final

from profiler.capacity import Loads, StageLoad, measure_loads
from profiler.finding import Finding, Remedy
from profiler.rules.verdicts import Case, Check, judge, seconds, share, unjudged
from profiler.timeline import Timeline

cause: Final = "kernel-autotune-lock"
_untold: Final = "torch's compiler was not in use, or does not count it"


def cost(timeline: Timeline, loads: Loads) -> float | None:
    """Waits for the lock, and the tuning itself: a thread that tunes does no work for its stage meanwhile."""
    return loads.lost_share(
        target=loads.target.lock_wait + _tuning(timeline, loads.target),
        drafter=loads.drafter.lock_wait + _tuning(timeline, loads.drafter),
    )


def _tuning(timeline: Timeline, load: StageLoad) -> float:
    """The share of a stage's time in which it tunes, or, where no wait was told, may wait for who tunes."""
    tuned = (timeline.tuning_s or 0.0) / load.range_s
    return tuned / load.threads if load.lock_wait > 0 else min(tuned, load.busy)


def check(timeline: Timeline) -> list[Finding]:
    """Supported when tuning after warm-up and the waits for its lock cost throughput."""
    loads = measure_loads(timeline)
    if loads is None:
        return [unjudged(cause, timeline)]
    waits = max(loads.target.lock_wait, loads.drafter.lock_wait)
    known = timeline.tuning_s is not None or waits > 0
    case = Case(
        cause=cause,
        summary="Stages stand still while one of them times kernels, and holds the tuner's lock",
        cost=cost(timeline, loads) if known else None,
        cost_reason=f"neither tuning nor waits for its lock were recorded: {_untold}",
        checks=[Check(bool(timeline.tuning_s) or waits > 0, "nothing was tuned after warm-up")],
        evidence=[
            seconds("timing kernels to choose from, all threads", timeline.tuning_s, _untold),
            share("targets waiting for the lock", loads.target.lock_wait),
            share("drafters waiting for the lock", loads.drafter.lock_wait),
        ],
        remedy=Remedy(
            "Tune before training: run every shape once at the start, keep the tuner's cache on disk "
            "(TRITON_CACHE_DIR, TORCHINDUCTOR_CACHE_DIR), and keep shapes few: each new one is tuned anew."
        ),
        condition="shapes go on varying; what is tuned in the first steps is warm-up and is not counted",
    )
    return [judge(case, timeline)]
