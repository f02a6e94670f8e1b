"""Stages stand still because another thread holds the GIL: Python runs one thread at a time."""

from __future__ import annotations

from typing import Final

import numpy as np
import pandas as pd

from profiler.capacity import Loads, StageLoad, measure_loads
from profiler.finding import Evidence, Finding, Remedy, Scalar
from profiler.rules.verdicts import Case, Check, judge, percent, quantity, share, unjudged
from profiler.timeline import Timeline

cause: Final = "gil-contention"
contender_share: Final = (
    0.05  # of its time that a thread waits, from where on it is one of those that contend
)
about_one_core: Final = 1.5
sooner_ms: Final = 0.1  # switch interval beyond which a holder is asked too late
busy_share: Final = 0.5  # of its time running, or ready to, from where on a thread is pointed to
other_process: Final = "the stages run in another process than the one whose GIL was watched"
_no_cpu_times: Final = "CPU time of threads was not sampled"
_nobody: Final = "no thread waits for it"


def cost(timeline: Timeline, loads: Loads) -> float | None:
    """What the stages' waits for the GIL cost. None where they were not sampled."""
    if why_unknown(timeline) is not None:
        return None
    return loads.lost_share(
        target=loads.target.gil_wait,
        drafter=loads.drafter.gil_wait,
        prefetch=loads.prefetch.gil_wait if loads.prefetch else 0.0,
    )


def why_unknown(timeline: Timeline) -> str | None:
    """Why nothing is known of the stages' waits for the GIL; None: they are known."""
    if timeline.gil.reason is not None:
        return timeline.gil.reason
    return None if timeline.gil.by_tid.keys() & set(timeline.threads["tid"]) else other_process


def check(timeline: Timeline) -> list[Finding]:
    """Supported when waits for the GIL were seen that neither a lack of CPUs nor copies explain."""
    loads = measure_loads(timeline)
    if loads is None:
        return [unjudged(cause, timeline)]
    case = Case(
        cause=cause,
        summary="Stages wait for the GIL while other threads run Python",
        cost=cost(timeline, loads),
        cost_reason=why_unknown(timeline),
        checks=_checks(timeline, loads),
        evidence=_evidence(timeline, loads),
        remedy=_remedy(timeline),
        condition="nothing else limits these threads; waits of microseconds are under-read and may cost more",
    )
    return [judge(case, timeline)]


def _contenders(timeline: Timeline) -> pd.DataFrame:
    threads = timeline.gil.threads
    return threads[threads["gil_wait_share"] >= contender_share]


def _mean(values: pd.Series) -> float | None:
    """None when there are none, or one is unknown."""
    mean = float(np.mean(values.to_numpy(dtype=float))) if len(values) else np.nan
    return mean if np.isfinite(mean) else None


def _cores(timeline: Timeline, contenders: pd.DataFrame) -> float | None:
    """Cores that the contending threads use; of the whole program where single threads were not sampled."""
    if not len(contenders):
        return None
    mean = _mean(contenders["cpu_share"])
    return timeline.gil.cores if mean is None else mean * len(contenders)


def _checks(timeline: Timeline, loads: Loads) -> list[Check]:
    contenders = _contenders(timeline)
    working = contenders[contenders["tid"].isin(timeline.threads["tid"])]
    waited, without_cpu = _mean(working["gil_wait_share"]) or 0.0, _mean(working["cpu_wait_share"])
    cores = _cores(timeline, contenders)
    side_by_side = max(about_one_core, (1 + len(contenders)) / 2)  # half of them besides the holder
    copies = max(loads.target.copies, loads.drafter.copies)
    waits = max(load.gil_wait for load in (loads.target, loads.drafter, loads.prefetch or loads.target))
    return [
        Check(
            None if without_cpu is None else without_cpu <= waited,
            f"stages wait for a CPU {percent(without_cpu or 0.0)} of the time, for the GIL {percent(waited)}",
        ),
        Check(
            None if cores is None else cores <= side_by_side,
            f"the {len(contenders)} threads that wait for it use {cores or 0.0:.1f} cores side by side",
        ),
        Check(waits >= copies, f"copies take {percent(copies)} of a stage's time, the GIL {percent(waits)}"),
    ]


def _evidence(timeline: Timeline, loads: Loads) -> list[Evidence]:
    contenders, reason, busy = _contenders(timeline), why_unknown(timeline), _bystander(timeline)
    no_cpu = reason or (_no_cpu_times if len(contenders) else _nobody)

    def waited(words: str, load: StageLoad | None) -> Evidence:
        known = None if load is None or reason is not None else load.gil_wait
        return share(f"{words} waiting for the GIL", known, reason or "prefetch left no spans")

    return [
        waited("targets", loads.target),
        waited("drafters", loads.drafter),
        waited("prefetch", loads.prefetch),
        quantity("threads that wait for it", None if reason else float(len(contenders)), "", reason),
        quantity("cores in use by them", _cores(timeline, contenders), "", no_cpu),
        share("these threads waiting for a CPU", _mean(contenders["cpu_wait_share"]), no_cpu),
        share("time some thread holds it", timeline.gil.held_share, timeline.gil.no_holders),
        *(share(f"time thread {name} holds it", held) for name, held in timeline.gil.holders[:1]),
        *([] if busy is None else [share(f"CPU of {busy[0]}", busy[1])]),
    ]


def _bystander(timeline: Timeline) -> tuple[str, float] | None:
    """The busiest thread that shares the stages' GIL and is no stage, and its share of a core."""
    threads = timeline.gil.threads
    others = threads[threads["gil_wait_share"].notna() & ~threads["tid"].isin(timeline.threads["tid"])]
    wanted = others["cpu_share"].astype(float) + others["cpu_wait_share"].astype(float)
    busy = others[wanted >= busy_share].sort_values("cpu_share")
    for row in busy.tail(1).to_dict("records"):
        return f"thread {row['tid']} ({row['thread']}), which is no stage", float(row["cpu_share"])
    return None


def _remedy(timeline: Timeline) -> Remedy:
    text = (
        "Run less Python beside the stages: compiled or graph-captured forwards and larger batches launch "
        "less, and work for the CPU belongs into processes of its own. More threads make it worse. While it "
        "runs, dflash-profile holder RUN names the line that holds the GIL."
    )
    knobs: dict[str, Scalar] = {}
    asked_ms = 0.0 if timeline.config is None else timeline.config.pipeline.switch_interval_ms
    if asked_ms > sooner_ms:
        knobs = {"pipeline.switch_interval_ms": sooner_ms}
        text = f"A holder is asked to let go after {asked_ms:g} ms: ask sooner. {text}"
    rows = timeline.threads[["stage", "index"]].itertuples(index=False)
    stages = {f"{stage}-{index}" for stage, index in rows}
    for name, held in timeline.gil.holders[:1]:
        if name not in stages:
            move = f"Move what thread {name} does into a process of its own: it holds the GIL"
            return Remedy(f"{move} {percent(held)} of the time. {text}", knobs)
    if (bystander := _bystander(timeline)) is not None:
        name, used = bystander
        busy = f"T{name[1:]}, uses {percent(used)} of a core"
        return Remedy(f"{busy}: if that is Python, move it into a process of its own. {text}", knobs)
    return Remedy(text, knobs)
