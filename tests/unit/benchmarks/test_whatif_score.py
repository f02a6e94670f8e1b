"""Forecasts count by their errors, intervals by what they hold, rankings by what was put first."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.whatif_score import judge, judge_ranking, score, score_rankings


def row(predicted: float, measured: float | None, setting: str = "a") -> dict[str, Any]:
    made = {
        "setting": setting,
        "predicted": predicted,
        "low": 0.9 * predicted,
        "high": 1.1 * predicted,
        "measured": measured,
    }
    return {**made, **judge(made)}


def test_errors_are_relative_to_what_was_measured_and_intervals_hold_or_do_not() -> None:
    rows = [row(100, 100), row(120, 100), row(90, 100), row(50, None)]
    assert [r["error"] for r in rows] == [0.0, pytest.approx(0.2), pytest.approx(-0.1), None]
    assert [r["covered"] for r in rows] == [True, False, False, None]
    figures = score(rows, repeats=[100.0, 110.0])
    assert (figures["settings"], figures["measured"], figures["covered"]) == (4, 3, 1)
    assert figures["median_error"] == pytest.approx(0.1)
    assert figures["repeat_noise"] == pytest.approx(5 / 105)
    assert not figures["median_is_good"]


def test_a_median_within_the_noise_of_repeats_is_good() -> None:
    rows = [row(108, 100), row(92, 100)]
    assert score(rows, repeats=[100.0, 120.0])["median_is_good"]
    assert not score(rows, repeats=[100.0, 101.0])["median_is_good"]


def test_nothing_measured_is_said() -> None:
    assert score([row(1, None)])["measured"] == 0


def test_the_first_ranked_is_held_against_the_best_measured() -> None:
    rows = [row(100, 90, "a"), row(99, 100, "b"), row(500, None, "never ran")]
    ranking = judge_ranking("base", rows, now=50.0)
    assert ranking is not None
    assert (ranking["first"], ranking["best"], ranking["behind"]) == ("a", "b", pytest.approx(0.1))
    assert ranking["best_gain"] == pytest.approx(1.0)
    near = judge_ranking("base", [row(100, 99, "a"), row(99, 100, "b")])
    same = judge_ranking("base", [row(100, 100, "a"), row(99, 90, "b")])
    figures = score_rankings([r for r in (ranking, near, same) if r is not None])
    assert (figures["rankings"], figures["best"], figures["best_or_equal"]) == (3, 1, 2)
    assert judge_ranking("base", rows[:1]) is None
