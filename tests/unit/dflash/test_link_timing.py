"""Rates are medians of rounds that overlap, without the first; on crossings whose times are given."""

from __future__ import annotations

import itertools

import pytest

from dflash.link_timing import latency_rounds, least_rounds, measure_latency, measure_rates, most_copies


class Timed:
    """A crossing of 1 GB whose rounds take the given seconds a copy, the last of them for ever."""

    copy_bytes = 1_000_000_000

    def __init__(self, *per_copy_s: float, log: list[str] | None = None, name: str = "") -> None:
        self._times = itertools.chain(per_copy_s, itertools.repeat(per_copy_s[-1]))
        self._log, self._name = log, name
        self.rounds: list[int] = []

    def begin(self, copies: int) -> None:
        self.rounds.append(copies)
        if self._log is not None:
            self._log.append(f"begin {self._name}")

    def end(self) -> float:
        if self._log is not None:
            self._log.append(f"end {self._name}")
        return next(self._times) * self.rounds[-1]

    def wrong_words(self) -> int:
        return 0


def test_the_first_round_does_not_count_and_one_outlier_does_not_matter() -> None:
    crossing = Timed(9.0, 0.5, 0.5, 7.0, 0.5)
    assert measure_rates([crossing]) == [pytest.approx(2.0)]


def test_slow_crossings_are_asked_least_often_and_fast_ones_in_long_rounds() -> None:
    now = itertools.count(step=10)  # ten seconds pass between two looks at the clock
    slow = Timed(1.0)
    measure_rates([slow], clock_s=lambda: float(next(now)))
    assert slow.rounds == [1, 1] + [1] * least_rounds
    fast = Timed(1e-6)
    measure_rates([fast])
    assert set(fast.rounds[2:]) == {most_copies}


def test_crossings_measured_together_are_all_begun_before_any_is_waited_for() -> None:
    log: list[str] = []
    rates = measure_rates([Timed(0.5, log=log, name="a"), Timed(0.25, log=log, name="b")])
    assert rates == [pytest.approx(2.0), pytest.approx(4.0)]
    assert log[:4] == ["begin a", "begin b", "end a", "end b"]


def test_a_time_of_zero_is_no_division_by_it() -> None:
    crossing = Timed(0.0, 0.0, 1.0)
    assert measure_rates([crossing]) == [pytest.approx(1.0)]
    assert crossing.rounds[2] == most_copies


def test_latency_is_the_median_of_single_copies_in_microseconds() -> None:
    crossing = Timed(1.0, 50e-6, 5.0, 50e-6)
    assert measure_latency(crossing) == pytest.approx(50.0)
    assert crossing.rounds == [1] * (1 + latency_rounds)
