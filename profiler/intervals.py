"""Sets of time intervals: arrays of shape (n, 2), sorted, not overlapping. Knows nothing of runs."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Intervals = NDArray[np.float64]
none: Intervals = np.empty((0, 2))


def merged(pieces: ArrayLike) -> Intervals:
    """The union of intervals in any order; empty and reversed ones are left out."""
    found = np.asarray(pieces, dtype=float).reshape(-1, 2)
    found = found[found[:, 1] > found[:, 0]]
    if not len(found):
        return none
    found = found[np.argsort(found[:, 0], kind="stable")]
    reach = np.maximum.accumulate(found[:, 1])
    first = np.r_[True, found[1:, 0] > reach[:-1]]
    last = np.r_[np.flatnonzero(first)[1:] - 1, len(found) - 1]
    return np.column_stack([found[first, 0], reach[last]])


def between(held: Intervals, low: float, high: float) -> Intervals:
    """What of `low` to `high` the intervals leave free."""
    edges = np.r_[low, np.clip(held, low, high).ravel(), high].reshape(-1, 2)
    return merged(edges)


def common_part(first: Intervals, second: Intervals) -> Intervals:
    """Where both hold."""
    if not len(first) or not len(second):
        return none
    low = min(first[0, 0], second[0, 0])
    high = max(first[-1, 1], second[-1, 1])
    return between(merged(np.concatenate([between(first, low, high), between(second, low, high)])), low, high)


def length(intervals: Intervals) -> float:
    """The time that they cover."""
    return float((intervals[:, 1] - intervals[:, 0]).sum())


def covered(piece: ArrayLike, by: Intervals) -> float:
    """The share of one interval that `by` covers, 0 to 1."""
    low, high = np.asarray(piece, dtype=float)
    return length(np.clip(by, low, high)) / (high - low) if high > low and len(by) else 0.0
