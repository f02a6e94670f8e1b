"""How likely it is that something much better was missed.

Rates and memory are drawn jointly, since configurations that are alike are right or wrong together. Knows
nothing of trials.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from autotune.guided.acquisition import Difference
from autotune.guided.belief import Belief
from autotune.guided.gaussian import square_root
from autotune.guided.memory import MemoryBelief

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
draws: Final = 512
rivals: Final = 160  # rows drawn jointly; the others are too unlikely to matter
# The largest of many draws is too large: they say too often that one of the rows is ahead. Where what they
# say came below 46 %, so that this power of it is 10 %, 13 of 14 searches of simulated problems had what they
# should (seeds 20 to 26, normal and hard).
honesty: Final = 3.0


def gap_chance(
    rates: Belief, memory: MemoryBelief | None, fits: Floats, rows: Ints, incumbent: int, tolerance: float
) -> float:
    """The chance that one of `rows` fits into memory and beats the incumbent by more than the tolerance.

    `fits` [M]: of each row; 1 where it is known to fit, which `memory` need not agree with.
    """
    least = math.log1p(tolerance)
    likely = Difference.to(rates, incumbent).exceeds(least)[rows] * fits[rows]
    rows = rows[np.argsort(-likely, kind="stable")[:rivals]]
    rows = rows[rows != incumbent]
    if not len(rows):
        return 0.0
    every = np.concatenate([[incumbent], rows])
    generator = np.random.default_rng(0)
    root = square_root(rates.covariance(every, every))
    drawn = rates.mean[every] + generator.standard_normal((draws, len(every))) @ root.T
    ahead = drawn[:, 1:] > drawn[:, :1] + least
    if memory is not None:
        ahead &= memory.draw_fits(rows, draws, generator) | (fits[rows] >= 1.0)
    return math.pow(float(ahead.any(axis=1).mean()), honesty)
