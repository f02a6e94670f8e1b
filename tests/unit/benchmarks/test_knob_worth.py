"""The agreement of a study's knobs with ablations: what is judged, and what the truth leaves undecided."""

from __future__ import annotations

import math

import pytest

from autotune.comparison import Interval
from autotune.lessons.knob_worth import KnobWorth, KnobWorths
from benchmarks.knob_worth import _ablate, _truths, compare, search_problem, sum_up


def worth(path: str, gain: float, verdict: str, reach: float = 0.05) -> KnobWorth:
    ratio = Interval(math.exp(gain), math.exp(gain - reach), math.exp(gain + reach))
    return KnobWorth(path=path, choice=1, other=2, ratio=ratio, verdict=verdict, runs=0)


def worths(*knobs: KnobWorth, order: tuple[tuple[str, str], ...] = ()) -> KnobWorths:
    return KnobWorths(knobs=knobs, order=order, error=0.02, inside=(9, 10))


def test_signs_orders_and_intervals_are_held_against_the_truth() -> None:
    told = worths(
        worth("a", 0.3, "faster"),
        worth("b", 0.2, "faster"),
        worth("c", 0.01, "not known"),
        order=(("a", "b"), ("b", "c")),
    )
    row = compare(told, {"a": (0.28, 0.0), "b": (-0.1, 0.0), "c": (0.0, 0.0)})
    assert [knob["right"] for knob in row["knobs"]] == [True, False, None]
    assert [knob["inside"] for knob in row["knobs"]] == [True, False, True]
    assert (row["order_right"], row["order_told"]) == (1, 2)


def test_a_truth_that_is_not_sure_decides_nothing() -> None:
    told = worths(worth("a", 0.3, "faster"), worth("b", 0.1, "faster"), order=(("a", "b"),))
    row = compare(told, {"a": (0.05, 0.2), "b": (0.1, 0.2)})
    assert [knob["right"] for knob in row["knobs"]] == [None, None]
    assert (row["order_told"], row["order_undecided"]) == (0, 1)


def test_no_difference_is_right_below_three_percent() -> None:
    told = worths(worth("a", 0.0, "no difference", 0.01), worth("b", 0.0, "no difference", 0.01))
    row = compare(told, {"a": (0.02, 0.005), "b": (0.2, 0.005)})
    assert [knob["right"] for knob in row["knobs"]] == [True, False]


def test_ablations_run_in_mirrored_order_and_failures_tell_nothing() -> None:
    from autotune.telemetry import Failed, FailureKind, Telemetry

    asked = []

    def measure(number, values):
        asked.append(values["x"])
        if values["x"] == "c":
            return Failed(FailureKind.crash, "gone")
        return Telemetry(tokens_per_s=100.0 + number)

    rates = _ablate({"": {"x": "a"}, "b": {"x": "b"}, "c": {"x": "c"}}, measure, 2)
    assert asked == ["a", "b", "c", "c", "b", "a"]
    assert (len(rates[""]), len(rates["b"]), len(rates["c"])) == (2, 2, 0)
    truths = _truths(rates)
    assert set(truths) == {"b"}
    assert truths["b"][1] > 0


def test_a_simulated_search_is_summed_up() -> None:
    row = search_problem("normal", 0, 8)
    assert row is not None
    told = sum_up([row])
    assert told["studies"] == 1
    assert told["knobs"] == len(row["knobs"])
    assert told["left_out_inside_90_share"] == pytest.approx(
        row["left_out_inside"][0] / row["left_out_inside"][1], abs=1e-4
    )
