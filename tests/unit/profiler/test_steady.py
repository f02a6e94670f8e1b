"""Windows, their sound ends, and the warm-up cut."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiler.run import Run
from profiler.steady import find_steady_range, find_warmup, min_windows, read_windows, squared_errors
from tests.run_builder import RunBuilder


def windows_of(path: Path, marks: list[tuple[int, float, int | None]]) -> tuple[pd.DataFrame, int]:
    builder = RunBuilder(path)
    for number, at_s, tokens in marks:
        builder.window(number, at_s, tokens, documents=4, supervised_tokens=30, processed_tokens=200)
    return read_windows(Run.open(builder.finish()).events)


def test_a_window_runs_from_the_end_of_the_one_before(tmp_path: Path) -> None:
    windows, set_aside = windows_of(tmp_path / "run", [(0, 1.0, 90), (1, 3.0, 100), (2, 4.0, 110)])
    assert windows["window"].tolist() == [1, 2]
    assert windows["seconds"].tolist() == [2.0, 1.0]
    assert windows["tokens"].tolist() == [100, 110]
    assert windows["documents"].tolist() == [4, 4]
    assert set_aside == 0


def test_unsound_marks_break_the_chain_and_are_counted(tmp_path: Path) -> None:
    marks: list[tuple[int, float, int | None]] = [(i, float(i), 100) for i in range(8)]
    marks[2] = (2, 0.5, 100)  # a clock that ran backwards
    marks[5] = (5, 5.0, None)
    windows, set_aside = windows_of(tmp_path / "run", marks)
    assert windows["window"].tolist() == [1, 4, 7]  # no interval spans a mark that is missing
    assert windows["seconds"].tolist() == [1.0, 1.0, 1.0]
    assert set_aside == 2


def test_a_window_told_twice_counts_once(tmp_path: Path) -> None:
    windows, set_aside = windows_of(tmp_path / "run", [(0, 1.0, 100), (1, 2.0, 100), (1, 3.0, 100)])
    assert len(windows) == 1
    assert set_aside == 1


def test_a_note_that_is_no_json_leaves_its_counts_unknown(tmp_path: Path) -> None:
    builder = RunBuilder(tmp_path / "run")
    for number, note in enumerate(["{", "[1]", '{"documents": NaN}', None]):
        builder.mark("trainer", 0, "window", float(number), window=number, tokens=5, note=note)
    windows, _ = read_windows(Run.open(builder.finish()).events)
    assert windows["documents"].isna().all()
    assert windows["tokens"].tolist() == [5, 5, 5]


@given(st.lists(st.floats(1, 1e6), min_size=2, max_size=40))
def test_the_statistic_is_the_squared_standard_error_of_each_rest(rates: list[float]) -> None:
    given_rates = np.array(rates)
    expected = [given_rates[d:].var() / len(given_rates[d:]) for d in range(len(rates))]
    assert squared_errors(given_rates) == pytest.approx(expected, rel=1e-6, abs=1e-6 * max(rates) ** 2)


def test_slow_first_windows_are_cut() -> None:
    rates = np.array([300.0, 500.0, 800.0] + [1000.0 + (-1) ** i for i in range(27)])
    assert find_warmup(rates) == (3, None)


def test_at_most_half_is_cut() -> None:
    cut, _ = find_warmup(np.linspace(1.0, 100.0, 40))
    assert cut == 20


@pytest.mark.parametrize("stalls", [range(20, 24), range(0, 36, 6)], ids=["a pause", "now and then"])
def test_stalls_are_no_warm_up(stalls: range) -> None:
    rates = 1000.0 + np.random.default_rng(1).normal(0, 10, 80)
    rates[stalls] = 20.0
    assert find_warmup(rates)[0] <= 2  # by their error alone, all up to the last stall would be cut


def test_a_slow_start_before_a_stall_is_cut_alone() -> None:
    rates = 1000.0 + np.random.default_rng(1).normal(0, 10, 80)
    rates[:6], rates[30] = 400.0, 20.0
    assert 6 <= find_warmup(rates)[0] <= 13


def test_twenty_windows_always_leave_ten() -> None:
    for seed in range(50):
        cut, reason = find_warmup(np.random.default_rng(seed).normal(100, 10, 20))
        assert reason is None
        assert 20 - cut >= min_windows


def test_noise_does_not_cost_the_number() -> None:
    refused = [find_warmup(np.random.default_rng(seed).normal(100, 5, 12))[1] for seed in range(50)]
    assert refused.count(None) >= 40


def test_ten_windows_are_not_kept_at_the_price_of_warm_up() -> None:
    rates = np.array([100.0, 100.0, 100.0, 100.0] + [1000.0 + (-1) ** i for i in range(8)])
    cut, reason = find_warmup(rates)
    assert cut == 4
    assert reason is not None
    assert "8 steady ones are left" in reason


def test_too_few_windows_are_said_and_kept(tmp_path: Path) -> None:
    windows, _ = windows_of(tmp_path / "run", [(i, float(i), 100) for i in range(6)])
    steady = find_steady_range(windows)
    assert (steady.windows_seen, steady.warmup_windows) == (5, 0)
    assert steady.reason == f"5 whole windows were seen; at least {min_windows} are needed"


def test_no_window_at_all_has_no_range() -> None:
    steady = find_steady_range(pd.DataFrame(columns=["window", "start_ns", "end_ns", "seconds", "tokens"]))
    assert steady.windows_used == 0
    assert steady.reason is not None


def test_the_warm_up_is_measured_in_seconds(tmp_path: Path) -> None:
    ends = np.cumsum([3.0] * 4 + [1.0 + 0.001 * (i % 2) for i in range(30)])
    windows, _ = windows_of(tmp_path / "run", [(i, float(t), 100) for i, t in enumerate(ends)])
    steady = find_steady_range(windows)
    assert steady.warmup_windows == 3
    assert math.isclose(steady.warmup_s, 9.0)
