"""Where a run changed for good: cuts between stretches in which stages spend their time differently.

Time is divided into equal bins; each has the throughput and the share of time of every kind of span. A cut is
the place that explains most of what the bins differ by, taken if both sides are long and clearly apart, and
looked for again on either side; where there is none, a stretch that differs from all around it. A stall now
and then is no change: means count. Knows nothing of causes.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

bins: Final = 120
least_part: Final = 0.1  # of the run that a stretch must last
least_s: Final = 10.0  # in a stretch: shorter ones are a machine's own ups and downs
least_windows: Final = 10  # in a stretch: fewer are no basis for a cause
least_step: Final = 0.1  # of its time that a stage spends differently, or of the throughput
least_certainty: Final = 5.0  # standard errors between the means of both sides
most_cuts: Final = 5
mostly_told: Final = 0.9  # of a bin that windows must cover: a gap in what was told is no change

Floats = NDArray[np.float64]
Nanoseconds = NDArray[np.int64]


def find_cuts(
    windows: pd.DataFrame, spans: pd.DataFrame, levels: pd.DataFrame, lo_ns: int, hi_ns: int
) -> list[int]:
    """Times (ns) within [lo_ns, hi_ns) at which the run changed, in order.

    `windows`: of `read_windows`; `spans`: of `thread_spans`; `levels`: t_ns, name, value, each a share that
    holds until its next row (waits for the GIL, clocks).
    """
    inside = windows[(windows["start_ns"] >= lo_ns) & (windows["end_ns"] <= hi_ns)]
    if len(inside) < 2 * least_windows or hi_ns <= lo_ns:
        return []
    count = min(bins, len(inside))
    edges = np.linspace(lo_ns, hi_ns, count + 1)
    columns = [_rates(inside, edges), *_shares(spans, edges), *_levels(levels, edges)]
    told = np.diff(_time_until(inside, edges)) >= mostly_told * np.diff(edges)
    table, begins = np.column_stack(columns)[told], edges[:-1][told]
    count = len(table)
    places: list[int] = []
    least = max(least_part, least_s * 1e9 / (hi_ns - lo_ns))
    _divide(table, 0, count, max(math.ceil(least * count), 2), places)
    places = _pruned(table, sorted(places))
    ends = np.sort(inside["end_ns"].to_numpy(dtype=np.int64))
    times = [int(begins[place]) for place in places]
    kept: list[int] = []
    for time in times:  # every stretch needs windows of its own
        nearest = int(ends[np.abs(ends - time).argmin()])
        before = ends[(ends > (kept[-1] if kept else lo_ns)) & (ends <= nearest)]
        if len(before) >= least_windows and (ends > nearest).sum() >= least_windows:
            kept.append(nearest)
    return kept[:most_cuts]


def _divide(table: Floats, start: int, end: int, least: int, places: list[int]) -> None:
    rows = table[start:end]
    place = _best_cut(rows, least)
    found = [place] if place is not None else _best_hump(rows, least)
    if found:
        places += [start + cut for cut in found]
        for a, b in pairwise([0, *found, len(rows)]):
            _divide(table, start + a, start + b, least, places)


def _best_cut(table: Floats, least: int) -> int | None:
    """The row that best divides the table into two with means of their own; None where they are not apart."""
    count = len(table)
    if count < 2 * least:
        return None
    sizes = np.arange(least, count - least + 1)
    sums = np.cumsum(table, axis=0)
    left = sums[sizes - 1]
    steps = left / sizes[:, None] - (sums[-1] - left) / (count - sizes)[:, None]
    gains = (steps**2).sum(axis=1) * sizes * (count - sizes) / count
    place = int(sizes[np.argmax(gains)])
    return place if _certainty(table[:place], table[place:], plain=True) >= least_certainty else None


def _best_hump(table: Floats, least: int) -> list[int]:
    """Begin and end of the rows that differ most from all others, before and after; empty where none do.

    What begins and ends is not found by one cut: either side of it is of two kinds.
    """
    count = len(table)
    if count < 3 * least:
        return []
    sums = np.vstack([np.zeros(table.shape[1]), np.cumsum(table, axis=0)])
    begins, ends = np.triu_indices(count + 1, least)
    fits = (begins >= least) & (count - ends >= least)
    begins, ends = begins[fits], ends[fits]
    sizes = (ends - begins)[:, None]
    inside = sums[ends] - sums[begins]
    steps = inside / sizes - (sums[-1] - inside) / (count - sizes)
    best = int(np.argmax((steps**2 * sizes * (count - sizes)).sum(axis=1)))
    begin, end = int(begins[best]), int(ends[best])
    others = np.concatenate([table[:begin], table[end:]])
    sure = _certainty(table[begin:end], others, plain=True)
    return [begin, end] if sure >= least_certainty else []


def _pruned(table: Floats, places: list[int]) -> list[int]:
    """The cuts that hold between their neighbours: the least certain one goes until all do."""
    while places:
        edges = [0, *places, len(table)]
        sure = [
            _certainty(table[a:b], table[b:c]) for a, b, c in zip(edges, edges[1:], edges[2:], strict=False)
        ]
        if min(sure) >= least_certainty:
            break
        places.pop(int(np.argmin(sure)))
    return places


def _certainty(before: Floats, after: Floats, *, plain: bool = False) -> float:
    """Standard errors between the means of both sides, of the column that is furthest apart and by enough.

    `plain`: as if bins were independent, while changes that are still to be found make them seem alike.
    """
    spread = np.concatenate([before - before.mean(axis=0), after - after.mean(axis=0)])
    variance = (spread**2).mean(axis=0) * (1 / len(before) + 1 / len(after))
    error = np.sqrt(variance if plain else variance * _memory(spread))
    step = np.abs(before.mean(axis=0) - after.mean(axis=0))
    sure = np.where(step >= least_step, step / np.maximum(error, 1e-9), 0.0)
    return float(sure.max())


def _memory(spread: Floats) -> Floats:
    """By how much neighbours that resemble each other raise the variance of a mean: (1 + r) / (1 - r)."""
    alike = (spread[1:] * spread[:-1]).mean(axis=0)
    r = np.clip(alike / np.maximum((spread**2).mean(axis=0), 1e-12), 0.0, 0.95)
    factor: Floats = (1 + r) / (1 - r)
    return factor


def _rates(windows: pd.DataFrame, edges: Floats) -> Floats:
    """Tokens per second in each bin, as a share of the run's largest lasting rate."""
    times = np.r_[windows["start_ns"].iloc[0], windows["end_ns"]].astype(float)
    made = np.r_[0.0, np.cumsum(windows["tokens"].to_numpy(dtype=float))]
    rates = np.diff(np.interp(edges, times, made)) / np.diff(edges)
    top = float(np.percentile(rates, 90))
    shares: Floats = np.minimum(rates / top, 1.5) if top > 0 else np.zeros_like(rates)
    return shares


def _shares(spans: pd.DataFrame, edges: Floats) -> list[Floats]:
    """For every stage and kind of span on the host's clock: the share of its threads' time in each bin."""
    host = spans[(spans["clock"] == "host") & (spans["name"] != "ended")]
    found = []
    for _, stage in host.groupby("stage", observed=True):
        threads = max(len(stage[["index", "tid"]].drop_duplicates()), 1)
        for _, mine in stage.groupby(["kind", "name", "channel"], observed=True):
            spent = np.diff(_time_until(mine, edges))
            found.append(spent / np.diff(edges) / threads)
    return found


def _time_until(spans: pd.DataFrame, times: Floats) -> Floats:
    """Total time of `spans` before each of `times`."""

    def passed(since: Floats) -> Floats:
        ordered = np.sort(since)
        count = np.searchsorted(ordered, times, side="right")
        before = np.r_[0.0, np.cumsum(ordered)][count]
        total: Floats = count * times - before
        return total

    starts, ends = (spans[name].to_numpy(dtype=float) - times[0] for name in ("start_ns", "end_ns"))
    times = times - times[0]
    return passed(starts) - passed(ends)


def _levels(levels: pd.DataFrame, edges: Floats) -> list[Floats]:
    middles = (edges[:-1] + edges[1:]) / 2
    found = []
    for _, mine in levels.groupby("name", sort=False):
        times = mine["t_ns"].to_numpy(dtype=float)
        values = mine["value"].to_numpy(dtype=float)
        found.append(np.interp(middles, times, values))
    return found


def is_long(windows: pd.DataFrame, lo_ns: int, hi_ns: int) -> bool:
    """Whether [lo_ns, hi_ns) lasts long enough to be judged by itself."""
    inside = (windows["start_ns"] >= lo_ns) & (windows["end_ns"] <= hi_ns)
    return int(inside.sum()) >= least_windows and hi_ns - lo_ns >= least_s * 1e9


def stretches(lo_ns: int, hi_ns: int, cuts: list[int]) -> list[tuple[int, int]]:
    """Begin and end of what the cuts divide [lo_ns, hi_ns) into."""
    return list(pairwise([lo_ns, *cuts, hi_ns]))
