"""Who waited for the GIL over a range, or for a CPU, and who held it: shares by thread from a run's samples.

All shares are of the thread's time, 0 to 1, and NaN where they were not sampled. Knows nothing of stages, nor
of what a wait costs.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from numpy.typing import NDArray

least_sweeps = 50  # fewer say nothing of a share
thread_columns = ["tid", "thread", "gil_wait_share", "cpu_share", "cpu_wait_share"]
not_sampled = "waits for the GIL were not sampled"
no_segment = "no segment of py-spy ended in this range"
holders_off = (
    "switched off: `dflash-profile holder RUN` asks while it runs, "
    "`record --set sensors.gil_holders=true` all the time"
)
too_few = "too few looks at the threads fall into the range"


@dataclass(frozen=True, eq=False, kw_only=True)
class GilWaits:
    """One row a thread. Without wait shares there is a reason."""

    threads: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=thread_columns))
    reason: str | None = not_sampled
    cores: float | None = None  # CPU cores in use by all processes of the run
    held_share: float | None = None  # of the time in which some thread held the GIL, as py-spy saw it
    holders: tuple[tuple[str, float], ...] = ()  # thread names and the share that each held it, most first
    no_holders: str | None = holders_off  # why `holders` and `held_share` say nothing

    @property
    def by_tid(self) -> dict[int, float]:
        """Wait shares by native thread id."""
        known = self.threads[self.threads["gil_wait_share"].notna()]
        return dict(zip(known["tid"].astype(int), known["gil_wait_share"].astype(float), strict=True))


def measure_gil(samples: pd.DataFrame, lo_ns: int, hi_ns: int) -> GilWaits:
    """From the samples of a whole run (profiler/run.py), over [lo_ns, hi_ns)."""
    known = samples["value"].notna()
    looks = samples[known & (samples["source"] == "gil_wait")]
    waits = _growth(looks, "gil_wait_samples", _clock(looks, "gil_sweeps"), lo_ns, hi_ns)
    sweeps = _growth(looks, "gil_sweeps", _clock(looks, "gil_sweeps"), lo_ns, hi_ns).get("*", 0.0)
    host = samples[known & (samples["source"] == "host")]
    ran = _growth(host, "thread_cpu_s", _clock(host, "cpu_s"), lo_ns, hi_ns)
    ready = _growth(host, "thread_run_queue_wait_s", _clock(host, "cpu_s"), lo_ns, hi_ns)
    enough = sweeps * (hi_ns - lo_ns) / 1e9 >= least_sweeps
    columns = [_by_tid(growth) for growth in (waits if enough else {}, ran, ready)]
    names = {tid: name for growth in (ran, waits) for key in growth for tid, name in [_split(key)]}
    rows = [
        (tid, names[tid], *(column.get(tid, np.nan) for column in columns))
        for tid in sorted(names)
        if tid >= 0
    ]
    table = pd.DataFrame(rows, columns=thread_columns)
    table["gil_wait_share"] = (table["gil_wait_share"] / sweeps).clip(upper=1.0) if enough else np.nan
    held = samples[known & samples["metric"].isin(("gil_hold_share", "gil_held_share"))]
    holders = _mean(held, "gil_hold_share", lo_ns, hi_ns)
    held_share = _mean(held, "gil_held_share", lo_ns, hi_ns).get("*")
    return GilWaits(
        threads=table,
        cores=_growth(host, "cpu_s", _clock(host, "cpu_s"), lo_ns, hi_ns).get("tree"),
        reason=None if enough and waits else _why_missing(samples, sweeps),
        held_share=held_share,
        holders=tuple(sorted(holders.items(), key=lambda item: -item[1])),
        no_holders=_why_no_holders(samples) if held_share is None else None,
    )


def _split(key: str) -> tuple[int, str]:
    """Native id and name of TID:NAME; -1 for keys of other things."""
    tid, _, name = key.partition(":")
    return int(tid) if tid.isdecimal() else -1, name


def _by_tid(growth: dict[str, float]) -> dict[int, float]:
    return {_split(key)[0]: value for key, value in growth.items()}


def _clock(samples: pd.DataFrame, metric: str) -> NDArray[np.int64]:
    """When a source took all its readings: the times of a metric that it never leaves out."""
    return np.unique(samples.loc[samples["metric"] == metric, "t_ns"].to_numpy(dtype=np.int64))


def _growth(
    samples: pd.DataFrame, metric: str, clock: NDArray[np.int64], lo_ns: int, hi_ns: int
) -> dict[str, float]:
    """How much each total grew a second, over the part of the range that was sampled.

    Totals have rows only when they change: between two ticks of the source's clock without a row they stood.
    """
    if len(clock) < 2 or hi_ns <= lo_ns:
        return {}
    edges = np.clip([lo_ns, hi_ns], clock[0], clock[-1])
    covered_s = float(edges[1] - edges[0]) / 1e9
    if covered_s <= 0:
        return {}
    found = {}
    for key, mine in samples[samples["metric"] == metric].groupby("key", observed=True):
        times, values = mine["t_ns"].to_numpy(dtype=np.int64), mine["value"].to_numpy(dtype=float)
        last = np.searchsorted(times, clock, side="right") - 1
        at_ticks = np.where(last >= 0, values[np.maximum(last, 0)], values[0])
        before, after = np.interp(edges, clock, at_ticks)
        found[str(key)] = max(float(after - before), 0.0) / covered_s
    return found


def _mean(samples: pd.DataFrame, metric: str, lo_ns: int, hi_ns: int) -> dict[str, float]:
    """Means over the segments that ended in the range, by key."""
    mine = samples[(samples["metric"] == metric) & samples["t_ns"].between(lo_ns, hi_ns)]
    means = mine.groupby("key", observed=True)["value"].mean()
    return {str(key): float(value) for key, value in means.items()}


def _why_missing(samples: pd.DataFrame, sweeps_per_s: float) -> str:
    mine = samples[(samples["source"] == "gil_wait") & (samples["key"] == "*") & samples["value"].isna()]
    reasons = mine["reason"].dropna()
    if len(reasons):
        return str(reasons.iloc[-1])
    looked = sweeps_per_s > 0 or bool(((samples["source"] == "gil_wait") & samples["value"].notna()).any())
    return too_few if looked else not_sampled


def _why_no_holders(samples: pd.DataFrame) -> str:
    mine = samples[samples["source"] == "gil"]
    reasons = mine["reason"].dropna()
    if len(reasons):
        return str(reasons.iloc[-1])
    return no_segment if mine["value"].notna().any() else holders_off
