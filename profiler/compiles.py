"""What torch.compile cost each stage thread in a range, and when. Knows nothing of why it compiled."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from profiler.waits import stages

least_part: Final = 0.1  # of the range that compilations must go on for, to have a time of their own
least_s: Final = 10.0
_least_times: Final = 5  # that a thread compiles anew: when fewer began and ended is chance
_parts: Final = 10  # of a range, over which compiling may be spread
_least_windows: Final = 5  # with a compilation, and without, to be compared
_least_certainty: Final = 3.0  # standard errors between their paces
compile_columns = ["stage", "index", "compiles", "recompiles", "seconds"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileStretch:
    """The time from the first recompilation of a range to the last and the pause after it."""

    begin_s: float  # since the run's start
    end_s: float
    seconds: float  # compiling meanwhile, all threads
    lost_share: float | None  # of the throughput, against windows without one; None: they cannot be compared

    @property
    def length_s(self) -> float:
        return self.end_s - self.begin_s

    def range_ns(self, start_ns: int) -> tuple[float, float]:
        """On the events' clock, on which the run started at `start_ns`."""
        return start_ns + 1e9 * self.begin_s, start_ns + 1e9 * self.end_s


def find_stretch(
    events: pd.DataFrame, windows: pd.DataFrame, lo_ns: int, hi_ns: int, start_ns: int
) -> CompileStretch | None:
    """Where in [lo_ns, hi_ns) stages compile again and again; None where they do not, or too shortly."""
    mine = events[events["stage"].isin(stages)]
    gauges = mine[(mine["kind"] == "gauge") & (mine["name"] == "recompiles")]
    rises = [
        g["t_ns"][g["value"].diff().fillna(g["value"]) > 0] for _, g in gauges.groupby(["stage", "index"])
    ]
    times = np.unique(pd.concat(rises).to_numpy(dtype=np.int64)) if rises else np.zeros(0, dtype=np.int64)
    times = times[(times >= lo_ns) & (times < hi_ns)]
    most = max((int(rise.between(lo_ns, hi_ns, inclusive="left").sum()) for rise in rises), default=0)
    if most < _least_times:  # several threads often meet a new shape together
        return None
    pause_ns = float(np.median(np.diff(times)))
    begin, end = float(times[0]), min(float(times[-1]) + pause_ns, float(hi_ns))
    if end - begin < max(least_part * (hi_ns - lo_ns), least_s * 1e9):
        return None
    spans = mine[(mine["kind"] == "span") & (mine["name"] == "compile")]
    starts = spans["t_ns"].to_numpy(dtype=float)
    ends = starts + spans["dur_ns"].to_numpy(dtype=float)
    spent_ns = float((ends.clip(begin, end) - starts.clip(begin, end)).sum())
    return CompileStretch(
        begin_s=(begin - start_ns) / 1e9,
        end_s=(end - start_ns) / 1e9,
        seconds=spent_ns / 1e9,
        lost_share=_lost(windows, np.r_[times, starts], np.r_[times, ends], begin, end),
    )


def _lost(
    windows: pd.DataFrame, starts: np.ndarray, ends: np.ndarray, begin: float, end: float
) -> float | None:
    """What windows in [begin, end) lose to those among them in which nothing is compiled."""
    known = windows[windows["tokens"].notna() & (windows["seconds"] > 0)]
    known = known[(known["end_ns"] > begin) & (known["start_ns"] < end)]
    opened = np.searchsorted(np.sort(starts), known["end_ns"].to_numpy(dtype=float), side="left")
    closed = np.searchsorted(np.sort(ends), known["start_ns"].to_numpy(dtype=float), side="left")
    hit = opened > closed
    if hit.sum() < _least_windows or (~hit).sum() < _least_windows:
        return None
    paces = (known["tokens"] / known["seconds"]).to_numpy(dtype=float)
    error = np.sqrt(paces[hit].var() / hit.sum() + paces[~hit].var() / (~hit).sum())
    if paces[~hit].mean() - paces[hit].mean() < _least_certainty * error:
        return 0.0
    quiet = known["tokens"][~hit].sum() / known["seconds"][~hit].sum()
    return max(1.0 - float(known["tokens"].sum() / known["seconds"].sum() / quiet), 0.0)


def count_compiles(events: pd.DataFrame, lo_ns: int, hi_ns: int) -> pd.DataFrame:
    """One row a stage thread that compiled in [lo_ns, hi_ns): how often, how often again, and its seconds."""
    mine = events[events["stage"].isin(stages)]
    spans = mine[(mine["kind"] == "span") & (mine["name"] == "compile")]
    start = spans["t_ns"].to_numpy(dtype=np.int64)
    inside = (start + spans["dur_ns"].to_numpy(dtype=np.int64)).clip(lo_ns, hi_ns) - start.clip(lo_ns, hi_ns)
    spans = spans.assign(seconds=inside / 1e9)[inside > 0]
    gauges = mine[(mine["kind"] == "gauge") & (mine["name"] == "recompiles")]
    told = pd.concat([spans, gauges[gauges["t_ns"].between(lo_ns, hi_ns, inclusive="left")]])
    rows = []
    for key in told[["stage", "index"]].drop_duplicates().itertuples(index=False):
        own = (
            frame[(frame["stage"] == key.stage) & (frame["index"] == key.index)] for frame in (spans, gauges)
        )
        timed, counted = own
        rows.append(
            {
                "stage": str(key.stage),
                "index": key.index,
                "compiles": len(timed),
                "recompiles": _rise(counted, lo_ns, hi_ns),
                "seconds": float(timed["seconds"].sum()),
            }
        )
    return pd.DataFrame(rows, columns=compile_columns)


def measure_scatter(
    events: pd.DataFrame, stretch: CompileStretch | None, lo_ns: int, hi_ns: int, start_ns: int
) -> float | None:
    """How far what compiling takes may be off, were the same to go on: relative.

    The standard error of the mean over tenths of the stretch, or else of [lo_ns, hi_ns): what fell into one
    of them says little of the next, what fills all of them is sure. Where seconds were not told,
    recompilations are counted instead. None where there were none.
    """
    mine = events[events["stage"].isin(stages)]
    spans = mine[(mine["kind"] == "span") & (mine["name"] == "compile")]
    first_ns, last_ns = (lo_ns, hi_ns) if stretch is None else stretch.range_ns(start_ns)
    edges = np.linspace(first_ns, last_ns, _parts + 1)
    start = spans["t_ns"].to_numpy(dtype=float)[:, None]
    end = start + spans["dur_ns"].to_numpy(dtype=float)[:, None]
    taken = np.diff(np.clip(edges, start, np.maximum(end, start)), axis=1).sum(axis=0)
    if not taken.any():
        gauges = mine[(mine["kind"] == "gauge") & (mine["name"] == "recompiles")]
        pairs = tuple(itertools.pairwise(edges))
        by_thread = [own for _, own in gauges.groupby(["stage", "index"])]
        taken = np.array([sum(_rise(own, int(lo), int(hi)) for own in by_thread) for lo, hi in pairs])
    mean = float(taken.mean())
    return float(taken.std(ddof=1)) / math.sqrt(_parts) / mean if mean > 0 else None


def tuning_seconds(events: pd.DataFrame, lo_ns: int, hi_ns: int) -> float | None:
    """Seconds in [lo_ns, hi_ns) that torch timed kernels to choose from; None where nobody counted."""
    gauges = events[(events["kind"] == "gauge") & (events["name"] == "autotune_s")]
    return _rise(gauges, lo_ns, hi_ns) if len(gauges) else None


def _rise(gauges: pd.DataFrame, lo_ns: int, hi_ns: int) -> float:
    """By how much a total rose in [lo_ns, hi_ns); it was 0 before its first gauge."""
    before = gauges.loc[gauges["t_ns"] < lo_ns, "value"]
    until = gauges.loc[gauges["t_ns"] < hi_ns, "value"]
    return float(until.max() if len(until) else 0.0) - float(before.max() if len(before) else 0.0)
