"""Parts are timed in their order, added up by name, and told longest first."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from dflash.stopwatch import Stopwatch


def watch(*moments: float) -> Stopwatch:
    return Stopwatch(iter(moments).__next__)


def run(stopwatch: Stopwatch, names: Sequence[str]) -> dict[str, float]:
    for name in names:
        with stopwatch.part(name):
            pass
    return stopwatch.seconds


def test_a_name_that_comes_again_adds_up() -> None:
    found = run(watch(0, 1, 1, 3, 10, 10.5), ["links", "data", "links"])
    assert found == {"links": 1.5, "data": 2}


def test_the_longest_is_told_first_and_moments_are_left_out() -> None:
    stopwatch = watch(0, 1, 1, 41.2, 50, 50.04)
    run(stopwatch, ["data", "weights", "plan"])
    assert stopwatch.describe() == "41.2 s: weights 40.2, data 1.0"
    assert Stopwatch(itertools.count().__next__).describe() == "0.0 s"


def test_a_part_that_fails_has_taken_its_time() -> None:
    stopwatch = watch(0, 2)
    with pytest.raises(ValueError), stopwatch.part("data"):
        raise ValueError
    assert stopwatch.seconds == {"data": 2}
