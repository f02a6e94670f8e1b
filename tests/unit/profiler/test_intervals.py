"""Sets of intervals, against a grid of points."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from profiler.intervals import Intervals, between, common_part, covered, length, merged, none

numbers = st.integers(0, 20)
pieces = st.lists(st.tuples(numbers, numbers), max_size=6)


def cells(intervals: Intervals) -> set[int]:
    return {cell for low, high in intervals for cell in range(round(low), round(high))}


def raw_cells(raw: list[tuple[int, int]]) -> set[int]:
    return {cell for low, high in raw for cell in range(low, high)}


@given(pieces, pieces)
def test_sets_are_those_of_a_grid(first: list[tuple[int, int]], second: list[tuple[int, int]]) -> None:
    a, b = (merged(np.array(raw).reshape(-1, 2)) for raw in (first, second))
    assert cells(a) == raw_cells(first)
    assert (a[1:, 0] > a[:-1, 1]).all()
    assert cells(between(a, 3, 17)) == set(range(3, 17)) - raw_cells(first)
    assert cells(common_part(a, b)) == raw_cells(first) & raw_cells(second)
    assert length(a) == len(raw_cells(first))


def test_share_of_an_interval() -> None:
    assert covered((0, 10), merged([(2, 4), (9, 12)])) == 0.3
    assert covered((0, 10), none) == 0.0
    assert covered((5, 5), merged([(0, 9)])) == 0.0
