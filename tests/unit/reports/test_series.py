from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from reports.series import Holds, Series, prepare


def series(values: object, t_s: object = None, *, holds: Holds = "no") -> Series:
    array = np.asarray(values, dtype=float)
    times = np.arange(len(array), dtype=float) if t_s is None else np.asarray(t_s, dtype=float)
    return Series(name="x", t_s=times, values=array, holds=holds)


def pieces(values: np.ndarray) -> int:
    """How many unbroken lines a reader would see."""
    finite = np.isfinite(values)
    return int(finite[:1].sum() + (finite[1:] & ~finite[:-1]).sum())


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=5000), st.integers(4, 400))
def test_the_extremes_and_both_ends_are_always_drawn(values: list[float], points: int) -> None:
    drawn = prepare(series(values), points)
    assert drawn.values.max() == max(values)
    assert drawn.values.min() == min(values)
    assert (drawn.values[0], drawn.values[-1]) == (values[0], values[-1])
    assert len(drawn.values) <= max(points, 4) + 2


def test_a_stall_of_two_samples_in_a_day_stays_visible() -> None:
    values = np.full(86_400, 97.0)
    values[40_000:40_002] = 0.0
    drawn = prepare(series(values))
    at = drawn.t_s[drawn.values == 0.0]
    assert len(at) >= 1
    assert 40_000 <= at[0] < 40_002


def test_an_unreadable_value_is_a_gap_and_is_counted() -> None:
    drawn = prepare(series([1, 2, np.nan, np.inf, 5, 6]))
    assert pieces(drawn.values) == 2
    assert drawn.unreadable == 2
    assert not (drawn.values == 0).any()


def test_a_long_silence_of_a_sampler_is_a_gap_though_nothing_says_so() -> None:
    t_s = np.concatenate([np.arange(0, 60, 0.5), np.arange(80, 120, 0.5)])
    drawn = prepare(series(np.ones(len(t_s)), t_s))
    assert pieces(drawn.values) == 2
    inside = (drawn.t_s > 60) & (drawn.t_s < 79.9)
    assert np.isnan(drawn.values[inside]).all()


def test_a_value_that_holds_has_no_gaps_however_long_it_holds() -> None:
    drawn = prepare(series([1, 2, 1, 3], [0, 1, 2, 500], holds="until_next"))
    assert pieces(drawn.values) == 1


def test_readings_with_a_backward_clock_are_set_aside_and_counted() -> None:
    drawn = prepare(series([1, 2, 99, 3], [0, 1, 0.5, 2]))
    assert drawn.set_aside == 1
    assert 99 not in drawn.values


def test_more_gaps_than_a_picture_shows_keep_the_longest() -> None:
    values = np.ones(20_000)
    values[1::2] = np.nan
    t_s = np.arange(20_000, dtype=float)
    t_s[10_000:] += 2000  # the one gap that matters
    drawn = prepare(series(values, t_s), 400)
    assert len(drawn.values) < 1000
    assert np.isnan(drawn.values[(drawn.t_s > 10_000) & (drawn.t_s < 11_999)]).all()


def test_nothing_readable_is_nothing_drawn() -> None:
    drawn = prepare(series([np.nan, np.nan]))
    assert len(drawn.t_s) == 0
    assert drawn.unreadable == 2


def recorded(path: Path, *metrics: str) -> Series:
    with path.open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["metric"] in metrics]
    t_s = [(int(row["ts_ns"]) - 1767225600 * 10**9) / 1e9 for row in rows]
    return series([float(row["value"]) for row in rows], t_s)


def test_recorded_metrics_with_gaps(data_dir: Path) -> None:
    path = data_dir / "reports" / "metrics_with_gaps.csv"
    utilisation = prepare(recorded(path, "util"))
    assert pieces(utilisation.values) == 2
    hole = np.flatnonzero(np.isnan(utilisation.values))[0]
    assert utilisation.t_s[hole + 1] - utilisation.t_s[hole - 1] >= 20
    power = prepare(recorded(path, "power_w"))
    assert power.unreadable == 6
    assert power.values[np.isfinite(power.values)].min() > 500
    assert prepare(recorded(path, "util", "went_back")).set_aside == 1
