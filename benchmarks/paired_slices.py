"""Rates of neighbouring slices of one program's life, and what the differences of pairs are worth.

A program's own speed wanders; within seconds it hardly does. So a slice with something switched on is
compared with the slice beside it and with no other, and every second pair is turned round: a steady drift
cancels.
Knows nothing of profilers or trainers.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

least_rows = 5  # of one worker in a slice: with fewer its rate means nothing

# Student's t at 95 % (one-sided) and 97.5 % (two-sided 95 %), by degrees of freedom.
t_quantiles = {
    1: (6.314, 12.706),
    2: (2.920, 4.303),
    3: (2.353, 3.182),
    4: (2.132, 2.776),
    5: (2.015, 2.571),
    6: (1.943, 2.447),
    7: (1.895, 2.365),
    8: (1.860, 2.306),
    9: (1.833, 2.262),
    10: (1.812, 2.228),
    11: (1.796, 2.201),
    12: (1.782, 2.179),
    13: (1.771, 2.160),
    14: (1.761, 2.145),
    15: (1.753, 2.131),
    17: (1.740, 2.110),
    20: (1.725, 2.086),
    25: (1.708, 2.060),
    30: (1.697, 2.042),
    40: (1.684, 2.021),
    60: (1.671, 2.000),
}


@dataclass(frozen=True, slots=True)
class Slice:
    """A stretch of time, CLOCK_MONOTONIC, in which everything stayed as it was. `pair` counts from 0."""

    pair: int
    on: bool
    start_ns: int
    end_ns: int

    @property
    def seconds(self) -> float:
        return (self.end_ns - self.start_ns) / 1e9


def order_of(pairs: int) -> list[tuple[int, bool]]:
    """(pair, on) of every slice: off on, on off, off on, …."""
    return [(pair, on) for pair in range(pairs) for on in ((False, True) if pair % 2 == 0 else (True, False))]


def rate_in(progress: NDArray[np.int64], part: Slice) -> float:
    """Amount done a second in `part`, all workers together.

    `progress` has a row (worker, t_ns, amount done so far) for each end of a worker's batch or part of one.
    Each worker is measured from its first end inside to its last, so that nothing is cut. Raises ValueError
    when a worker has fewer than `least_rows` rows there.
    """
    inside = progress[(progress[:, 1] >= part.start_ns) & (progress[:, 1] <= part.end_ns)]
    rate = 0.0
    for worker in np.unique(progress[:, 0]):
        own = inside[inside[:, 0] == worker]
        if len(own) < least_rows:
            raise ValueError(
                f"worker {worker} noted its progress {len(own)} times in a slice of {part.seconds:.1f} s: "
                f"{least_rows} are needed, make slices longer"
            )
        rate += float(own[-1, 2] - own[0, 2]) / ((own[-1, 1] - own[0, 1]) / 1e9)
    return rate


def compare(slices: Sequence[Slice], rates: Sequence[float]) -> dict[str, Any]:
    """What was lost while on, from the pairs; and how far neighbours differ where nothing was switched."""
    pairs = []
    for first, second in zip(range(0, len(slices), 2), range(1, len(slices), 2), strict=True):
        by_state = {slices[first].on: rates[first], slices[second].on: rates[second]}
        pairs.append(
            {"off": by_state[False], "on": by_state[True], "lost": 1 - by_state[True] / by_state[False]}
        )
    equal = [
        1 - rates[later] / rates[earlier]
        for earlier, later in itertools.pairwise(range(len(slices)))
        if slices[earlier].on == slices[later].on
    ]
    return {
        "pairs": pairs,
        "lost": bounds([pair["lost"] for pair in pairs]),
        "equal_neighbours": bounds(equal) if equal else None,
    }


def bounds(values: Sequence[float]) -> dict[str, Any]:
    """Mean, median, spread, and 95 % bounds of the mean by Student's t; None where one value tells none."""
    mean = statistics.fmean(values)
    told: dict[str, Any] = {"count": len(values), "mean": mean, "median": statistics.median(values)}
    if len(values) < 2:
        return {**told, "standard_deviation": None, "upper_95_one_sided": None, "interval_95": None}
    deviation = statistics.stdev(values)
    error = deviation / math.sqrt(len(values))
    one_sided, two_sided = t_quantiles[max(dof for dof in t_quantiles if dof < len(values))]
    return {
        **told,
        "standard_deviation": deviation,
        "upper_95_one_sided": mean + one_sided * error,
        "interval_95": [mean - two_sided * error, mean + two_sided * error],
    }
