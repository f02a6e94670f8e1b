"""A tuning contest is added up as it says: first trial that is good, regret, failures, own stops."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.table_cells import table
from benchmarks.tuner_score import quantile, score, shorten, trials_until_good
from benchmarks.tuner_tables import tuner_contest


def row(worth: list[float], **more: Any) -> dict[str, Any]:
    whole = worth + worth[-1:] * (60 - len(worth))
    made = more.get("made", 60)
    return {
        "tuner": "ours",
        "set": "hard",
        "trials": 60,
        "worth": whole,
        "made": made,
        "failed": 0,
        "repeated": 0,
        "paired": 0,
        "by": "its own opinion",
        "seconds": 0.5 * made,
        **more,
    }


@pytest.mark.parametrize(
    ("worth", "first"),
    [([0.98], 1), ([0.5, 0.979, 0.99, 0.4], 3), ([0.5, 0.97999], None), ([0.0], None)],
)
def test_the_first_good_recommendation_counts(worth: list[float], first: int | None) -> None:
    assert trials_until_good(worth) == first


@pytest.mark.parametrize(
    ("numbers", "share", "found"),
    [([3], 0.5, 3), ([5, 1, 3], 0.5, 3), (list(range(1, 21)), 0.9, 18), ([1, 61], 0.9, 61), ([2, 1], 0.5, 1)],
)
def test_a_quantile_is_one_of_the_numbers(numbers: list[int], share: float, found: int) -> None:
    assert quantile(numbers, share) == found


def test_more_trials_than_were_made_are_no_number() -> None:
    (entry,) = score([row([0.5]), row([0.5]), row([0.99])])
    assert entry["trials_median"] is None
    assert entry["good_at_end"] == pytest.approx(1 / 3)


def test_regret_is_the_mean_over_problems_of_what_would_be_recommended_then() -> None:
    (entry,) = score([row([0.5] * 9 + [0.9]), row([1.0])])
    assert entry["regret"]["5"] == pytest.approx(0.25)
    assert entry["regret"]["10"] == pytest.approx(0.05)
    assert entry["regret"]["60"] == pytest.approx(0.05)


def test_a_good_one_that_is_given_up_again_is_not_good_at_the_end() -> None:
    (entry,) = score([row([0.99, 0.0])])
    assert entry["trials_median"] == 1
    assert entry["good_at_end"] == 0


def test_failures_are_a_share_of_the_trials_that_were_made() -> None:
    (entry,) = score([row([1.0], made=10, failed=2), row([1.0], made=30, failed=0)])
    assert entry["failed_share"] == pytest.approx(0.05)


def test_stops_are_judged_by_what_was_recommended_then() -> None:
    stopped = {"stop": "nothing more to gain", "gap_probability": 0.08}
    rows = [row([0.5, 0.99], made=12, stopped=12, **stopped), row([0.9], made=16, stopped=16, **stopped)]
    (entry,) = score([*rows, row([0.9])])
    assert entry["stopped_share"] == pytest.approx(2 / 3)
    assert entry["stopped_median"] == 14
    assert entry["stopped_covered"] == pytest.approx(0.5)
    assert entry["stopped_regret"] == pytest.approx(0.055)


def test_sets_and_tuners_are_added_up_apart_and_shown_in_a_table() -> None:
    rows = [row([0.99]), row([0.5], tuner="random"), row([0.99], set="normal")]
    scores = score(rows)
    assert [(entry["set"], entry["tuner"]) for entry in scores] == [
        ("hard", "ours"),
        ("hard", "random"),
        ("normal", "ours"),
    ]
    text = table(*tuner_contest({"trials": 60, "scores": scores}))
    assert "| hard | random | 1 | >60 | >60 | 0 % | 50.0 % |" in text
    assert "| hard | ours | 1 | 1 | 1 | 100 % | 1.0 % |" in text


def test_a_row_of_the_document_is_short_and_keeps_its_figures() -> None:
    short = shorten(row([0.5] * 9 + [0.99], stopped=12, gap_probability=0.08))
    assert short["worth_at"] == {"5": 0.5, "10": 0.99, "20": 0.99, "40": 0.99, "60": 0.99}
    assert (short["good_after"], short["stopped"], short["gap_probability"]) == (10, 12, 0.08)
    assert "worth" not in short
