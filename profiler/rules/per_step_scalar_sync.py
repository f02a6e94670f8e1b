"""A stage waits for its own device inside every step, for a number to log or to decide by; then it idles.

The device has nothing queued when the thread goes on, so it waits for Python in turn. Knows nothing of which
line asks for the number.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from profiler.capacity import Loads, StageLoad, measure_loads
from profiler.finding import Finding, Remedy
from profiler.gpus import busy_util_pct, full_work
from profiler.rules.verdicts import Case, Check, judge, quantity, seconds, share, unjudged
from profiler.timeline import Timeline

cause: Final = "per-step-scalar-sync"


def waited(timeline: Timeline, load: StageLoad) -> float:
    """Share of a stage's time in which it waits for its own device and is not known to have it at work."""
    return 0.0 if _device_works(timeline, load) else load.gpu_wait


def cost(timeline: Timeline, loads: Loads) -> float | None:
    """What those waits cost."""
    return loads.lost_share(target=waited(timeline, loads.target), drafter=waited(timeline, loads.drafter))


def check(timeline: Timeline) -> list[Finding]:
    """Supported when waits for the own device cost throughput and the device is not simply at work."""
    loads = measure_loads(timeline)
    if loads is None:
        return [unjudged(cause, timeline)]
    load = max((loads.drafter, loads.target), key=lambda load: load.gpu_wait)
    works = _device_works(timeline, load)
    waits_s = load.gpu_wait * load.range_s * load.threads
    case = Case(
        cause=cause,
        summary=f"{load.stage.capitalize()}s wait for their own device in every step, for a number",
        cost=loads.lost_share(target=loads.target.gpu_wait, drafter=loads.drafter.gpu_wait)
        if works
        else cost(timeline, loads),
        checks=[
            Check(
                None if works is None else not works,
                f"the {load.stage}s' GPUs are at work all the time: the wait is for their computation",
            )
        ],
        evidence=[
            share("drafters waiting for their own device", loads.drafter.gpu_wait),
            share("targets waiting for their own device", loads.target.gpu_wait),
            seconds(
                f"such waits of a {load.stage}, a batch",
                waits_s / load.batches if load.batches else None,
                "no batches",
            ),
            share(f"{load.stage}s at other work", load.busy - load.gpu_wait),
            quantity(f"utilisation of {load.stage}s' GPUs", _utilisation(timeline, load), "%", "not read"),
        ],
        remedy=Remedy(
            "Ask for the number later or less often: keep losses on the device and read them once a window, "
            "copy them to pinned memory without waiting, and take .item(), .cpu(), bool() and printing of "
            "tensors out of the step."
        ),
        condition="the number is not needed to go on",
    )
    return [judge(case, timeline)]


def _device_works(timeline: Timeline, load: StageLoad) -> bool | None:
    """Whether the stage's GPUs work all along; None where that is unknown.

    Logical devices compute in the thread itself, so a wait for them is no work.
    """
    if timeline.emulated:
        return False
    mine = timeline.gpus[timeline.gpus["role"] == load.stage]
    known = mine[mine["util_pct"].astype(float).notna()]
    if not len(known):
        return None
    return bool((known["util_pct"] >= busy_util_pct).all() and (known["work"] == full_work).all())


def _utilisation(timeline: Timeline, load: StageLoad) -> float | None:
    mine = timeline.gpus.loc[timeline.gpus["role"] == load.stage, "util_pct"].astype(float)
    mean = float(mine.mean()) if len(mine) else np.nan
    return mean if np.isfinite(mean) else None
