"""A run is cut where it changed for good, and nowhere else: not by noise, warm-up, or stalls now and then."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

from profiler.segments import find_cuts, is_long, stretches

second = 1_000_000_000
no_levels = pd.DataFrame(columns=["t_ns", "name", "value"])
no_spans = pd.DataFrame(
    columns=["stage", "index", "tid", "clock", "kind", "name", "channel", "start_ns", "end_ns"]
)


def windows_of(rate: Callable[[float], float], seconds: int = 200) -> pd.DataFrame:
    starts = np.arange(seconds) * second
    tokens = [rate(float(t)) for t in range(seconds)]
    return pd.DataFrame({"start_ns": starts, "end_ns": starts + second, "tokens": tokens})


def cuts_of(
    rate: Callable[[float], float], seconds: int = 200, spans: pd.DataFrame = no_spans
) -> list[float]:
    found = find_cuts(windows_of(rate, seconds), spans, no_levels, 0, seconds * second)
    return [cut / second for cut in found]


def test_a_lasting_change_is_found_where_it_is() -> None:
    assert cuts_of(lambda t: 1000 if t < 80 else 700) == pytest.approx([80], abs=2)


def test_several_changes_are_found_in_order() -> None:
    rates = (1000, 500, 800)
    assert cuts_of(lambda t: rates[int(t // 67) % 3], 200) == pytest.approx([67, 134], abs=2)


def test_a_gap_in_what_was_told_is_no_change_and_moves_none() -> None:
    windows = windows_of(lambda t: 1000.0 if t < 107 else 700.0)
    gap = windows[(windows["start_ns"] < 90 * second) | (windows["start_ns"] >= 100 * second)]
    found = find_cuts(gap, no_spans, no_levels, 0, 200 * second)
    assert [cut / second for cut in found] == pytest.approx([107], abs=2)
    steady = windows.assign(tokens=1000.0)
    steady = steady[(steady["start_ns"] < 60 * second) | (steady["start_ns"] >= 140 * second)]
    assert find_cuts(steady, no_spans, no_levels, 0, 200 * second) == []


@pytest.mark.parametrize("seconds", [60, 130, 600])
def test_what_begins_and_ends_is_found_by_both(seconds: int) -> None:
    rng = np.random.default_rng(seconds)
    begin, end = seconds // 3, 2 * seconds // 3
    found = cuts_of(lambda t: float(rng.normal(700 if begin <= t < end else 1000, 30)), seconds)
    assert found == pytest.approx([begin, end], abs=max(2, seconds // 50))


@pytest.mark.parametrize("seed", range(40))
def test_noise_is_no_change(seed: int) -> None:
    rng = np.random.default_rng(seed)
    assert cuts_of(lambda _: float(rng.normal(1000, 150))) == []


@pytest.mark.parametrize("seed", range(40))
def test_slow_wandering_of_a_busy_machine_is_no_change(seed: int) -> None:
    rng, level = np.random.default_rng(seed), [0.0]

    def wander(_: float) -> float:
        level[0] = 0.9 * level[0] + float(rng.normal(0, 20))
        return 1000 + level[0]

    assert cuts_of(wander) == []


def test_stalls_now_and_then_are_no_change() -> None:
    assert cuts_of(lambda t: 200 if t % 10 == 0 else 1000) == []


def test_a_short_run_is_not_cut() -> None:
    assert cuts_of(lambda t: 1000 if t < 9 else 300, seconds=18) == []


def test_a_change_of_how_time_is_spent_counts_without_a_change_of_pace() -> None:
    rows = []
    for t in range(200):
        name = "forward" if t < 120 else "copy"
        half = t * second + second // 2
        rows.append(("target", 0, 1, "host", "work", name, "", t * second, half))
    spans = pd.DataFrame(rows, columns=no_spans.columns)
    assert cuts_of(lambda _: 1000.0, spans=spans) == pytest.approx([120], abs=2)


def test_a_level_that_changes_counts() -> None:
    levels = pd.DataFrame(
        {"t_ns": np.arange(200) * second, "name": "clock", "value": [1.0] * 60 + [0.5] * 140}
    )
    found = find_cuts(windows_of(lambda _: 1000.0), no_spans, levels, 0, 200 * second)
    assert [cut / second for cut in found] == pytest.approx([60], abs=2)


def test_what_is_long_enough_holds_ten_windows_and_ten_seconds() -> None:
    windows = windows_of(lambda _: 1000.0)
    assert is_long(windows, 0, 10 * second)
    assert not is_long(windows, 0, 9 * second)
    assert not is_long(windows[::2], 0, 12 * second)
    quick = windows.assign(start_ns=windows["start_ns"] // 10, end_ns=windows["end_ns"] // 10)
    assert not is_long(quick, 0, 9 * second)


def test_stretches_cover_the_range() -> None:
    assert stretches(0, 9, [3, 5]) == [(0, 3), (3, 5), (5, 9)]
    assert stretches(0, 9, []) == [(0, 9)]
