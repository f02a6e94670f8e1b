"""Measured series made ready for drawing: gaps stay gaps, unreadable values are counted, extremes kept.

Knows nothing of charts or of what a series means.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
from tsdownsample import MinMaxDownsampler

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]
# Until the next one (a queue's depth), since the last one (the mean of what just ended), or its moment only.
Holds = Literal["until_next", "since_last", "no"]
gap_factor: Final = 5.0  # a silence this many sampling intervals long is a gap


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Values over time. `t_s` ascends; a value that is no finite number marks a gap."""

    name: str
    t_s: Floats
    values: Floats
    holds: Holds = "no"  # a value that holds needs no further readings, so silence is no gap


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What is drawn of a series, and what is not."""

    t_s: Floats
    values: Floats  # NaN breaks the line
    unreadable: int  # readings that were no finite number
    set_aside: int  # readings whose clock went backward


def prepare(series: Series, points: int = 1500) -> Prepared:
    """`series` in about `points` points: every minimum and maximum stays visible, every gap a gap."""
    t_s, values = np.asarray(series.t_s, float), np.asarray(series.values, float)
    forward = _forward(t_s)
    t_s, values = t_s[forward], values[forward]
    finite = np.isfinite(values)
    breaks = _breaks(t_s, finite, series.holds)
    pieces = _join_short_gaps(_readable_pieces(finite, breaks), t_s, max(1, points // 8))
    kept_t: list[Floats] = []
    kept_values: list[Floats] = []
    total = sum(len(piece) for piece in pieces)
    for piece in pieces:
        chosen = piece[_extremes(values[piece], max(4, points * len(piece) // total))]
        if kept_t:
            kept_t.append(np.array([(kept_t[-1][-1] + t_s[chosen[0]]) / 2]))
            kept_values.append(np.array([np.nan]))
        kept_t.append(t_s[chosen])
        kept_values.append(values[chosen])
    return Prepared(
        t_s=np.concatenate(kept_t) if kept_t else np.empty(0),
        values=np.concatenate(kept_values) if kept_values else np.empty(0),
        unreadable=int((~finite).sum()),
        set_aside=int((~forward).sum()),
    )


def _forward(t_s: Floats) -> npt.NDArray[np.bool_]:
    """Which readings are not earlier than all before them."""
    return np.isfinite(t_s) & (t_s >= np.maximum.accumulate(np.where(np.isfinite(t_s), t_s, -np.inf)))


def _breaks(t_s: Floats, finite: npt.NDArray[np.bool_], holds: Holds) -> Indices:
    """Indices at which a new piece starts: after an unreadable value, and after a long silence."""
    if len(t_s) < 2:
        return np.empty(0, np.int64)
    new = finite[1:] != finite[:-1]
    if holds == "no":
        steps = np.diff(t_s)
        new = new | (steps > gap_factor * np.median(steps))
    return np.flatnonzero(new) + 1


def _readable_pieces(finite: npt.NDArray[np.bool_], breaks: Indices) -> list[Indices]:
    """Runs of indices between breaks, without those that cannot be read."""
    return [piece for piece in np.split(np.arange(len(finite)), breaks) if finite[piece].any()]


def _join_short_gaps(pieces: list[Indices], t_s: Floats, most: int) -> list[Indices]:
    """The same pieces, the shortest gaps closed when there are more gaps than a picture can show."""
    if len(pieces) <= most + 1:
        return pieces
    gaps = np.array([t_s[after[0]] - t_s[before[-1]] for before, after in pairwise(pieces)])
    open_gaps = np.sort(np.argsort(gaps)[-most:])
    edges = [0, *(open_gaps + 1), len(pieces)]
    return [np.concatenate(pieces[start:end]) for start, end in pairwise(edges)]


def _extremes(values: Floats, points: int) -> Indices:
    """Indices of at most about `points` values: both ends and the extremes of equal buckets."""
    if len(values) <= points:
        return np.arange(len(values))
    downsampler = MinMaxDownsampler()  # type: ignore[no-untyped-call]
    chosen = downsampler.downsample(np.ascontiguousarray(values), n_out=points // 2 * 2)
    return np.unique(np.concatenate([[0], chosen.astype(np.int64), [len(values) - 1]]))
