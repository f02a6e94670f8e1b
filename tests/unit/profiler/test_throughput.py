"""Throughput: definitions that padding cannot raise, and an interval that covers."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from profiler.steady import SteadyRange, find_steady_range, min_windows
from profiler.throughput import Throughput, bootstrap_interval, throughput_of


def windows_of(tokens: np.ndarray, seconds: np.ndarray, **columns: float) -> pd.DataFrame:
    ends = np.round(np.cumsum(seconds) * 1e9).astype(np.int64)
    frame = pd.DataFrame({"tokens": tokens, "seconds": seconds, "end_ns": ends})
    frame["start_ns"] = frame["end_ns"] - np.round(seconds * 1e9).astype(np.int64)
    told = {"documents": 4.0, "supervised_tokens": 300.0, "processed_tokens": 2000.0} | columns
    return frame.assign(**told)


def measured(windows: pd.DataFrame) -> Throughput:
    return throughput_of(windows, find_steady_range(windows))


def test_the_three_token_rates_reconcile_with_tokens_over_seconds() -> None:
    # Half of what is processed is padding; 30 % of what is real is supervised.
    result = measured(windows_of(np.full(30, 1000.0), np.full(30, 2.0)))
    assert result.tokens_per_s == pytest.approx(500.0)
    assert result.processed_tokens_per_s == pytest.approx(1000.0)
    assert result.supervised_tokens_per_s == pytest.approx(150.0)
    assert result.samples_per_s == pytest.approx(2.0)
    assert "MSER" in result.method


def test_padding_cannot_raise_the_figure() -> None:
    tokens, seconds = np.full(20, 1000.0), np.full(20, 2.0)
    padded = measured(windows_of(tokens, seconds, processed_tokens=9000.0))
    assert padded.tokens_per_s == measured(windows_of(tokens, seconds)).tokens_per_s


def test_warm_up_is_outside_the_figure() -> None:
    seconds = np.array([10.0, 8.0, 6.0] + [2.0, 2.001] * 15)
    result = measured(windows_of(np.full(33, 1000.0), seconds))
    assert result.tokens_per_s == pytest.approx(500.0, rel=0.01)
    assert result.warmup_s == pytest.approx(24.0)
    assert result.windows_used == 30
    assert result.range_s == pytest.approx((24.0, 24.0 + 15 * 4.001))


def test_too_few_windows_give_no_number_but_a_reason() -> None:
    count = min_windows - 1
    result = measured(windows_of(np.full(count, 1000.0), np.full(count, 2.0)))
    assert result.tokens_per_s is result.low is result.processed_tokens_per_s is None
    assert result.reason is not None
    assert "9 whole windows" in result.reason


def test_an_unknown_count_leaves_only_its_own_rate_unknown() -> None:
    result = measured(windows_of(np.full(20, 1000.0), np.full(20, 2.0), documents=float("nan")))
    assert result.samples_per_s is None
    assert result.tokens_per_s == pytest.approx(500.0)


def test_the_interval_is_the_same_for_the_same_run() -> None:
    windows = windows_of(np.full(20, 1000.0), np.random.default_rng(3).uniform(1, 2, 20))
    assert bootstrap_interval(windows) == bootstrap_interval(windows)


def test_the_interval_covers_the_true_rate_about_as_often_as_it_says() -> None:
    covered = 0
    for seed in range(100):
        seconds = np.random.default_rng(seed).normal(2.0, 0.2, 40)
        low, high = bootstrap_interval(windows_of(np.full(40, 1000.0), seconds))
        assert low < high
        covered += low <= 500.0 <= high
    assert 78 <= covered <= 98


def test_windows_without_seconds_in_them_do_not_count() -> None:
    empty = pd.DataFrame(columns=["start_ns", "end_ns", "seconds", "tokens", "documents"])
    result = throughput_of(
        empty.assign(supervised_tokens=0.0, processed_tokens=0.0), SteadyRange(0, 0, 0, 0, 0.0, 0, "none")
    )
    assert result.tokens_per_s is None
    assert result.range_s is None
