"""Charts of a study: accepted by plotly, said in words, thinned where they are many."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go
import pytest

from reports import style
from reports.page import Chart
from reports.study_charts import (
    Balance,
    Expectation,
    TrialPoint,
    Whisker,
    draw_balance,
    draw_predictions,
    draw_trials,
    draw_worths,
    most_points,
    most_words,
    thin,
)

hostile = '<a href="https://evil">x</a><b>'


def check(chart: Chart) -> list[dict[str, Any]]:
    """The chart's traces, after plotly has accepted every key and value."""
    go.Figure(chart.spec)
    return chart.spec["data"]


def test_trials_without_a_figure_are_on_a_strip_of_their_own() -> None:
    chart = draw_trials(
        [
            TrialPoint(number=0, name="start", tokens_per_s=100.0, low=95.0, high=105.0, role="baseline"),
            TrialPoint(number=1, name="big", tokens_per_s=None, role="failed", reason="out of memory"),
            TrialPoint(number=2, name="fast", tokens_per_s=200.0, low=190.0, high=210.0, role="recommended"),
        ]
    )
    by_name = {trace["name"]: trace for trace in check(chart)}
    assert by_name["failed"]["yaxis"] == "y2"
    assert by_name["recommended"]["y"] == [200.0]
    assert by_name["recommended"]["error_y"]["array"] == [10.0]
    assert "yaxis" not in by_name["recommended"]
    assert "Trial 1, big, failed: n/a: out of memory." in chart.caption


def test_many_trials_are_thinned_and_what_stands_out_stays() -> None:
    points = [TrialPoint(number=n, name="c", tokens_per_s=100.0 + n % 7) for n in range(5000)]
    points[1234] = TrialPoint(number=1234, name="b", tokens_per_s=500.0, role="recommended")
    points[2345] = TrialPoint(number=2345, name="u", tokens_per_s=900.0, role="unhealthy", reason="loss")
    points[3456] = TrialPoint(number=3456, name="c", tokens_per_s=450.0)
    kept = thin(points)
    assert len(kept) <= most_points
    assert {1234, 2345, 3456} <= {point.number for point in kept}
    chart = draw_trials(points)
    assert f"{5000 - len(kept):,}" in chart.caption
    assert f"And {5000 - most_words:,} more" in chart.caption
    assert len(chart.caption) < 10_000


def test_few_trials_are_all_drawn() -> None:
    points = [TrialPoint(number=n, name="c", tokens_per_s=100.0) for n in range(most_points)]
    assert thin(points) == points


def test_a_worth_that_is_not_known_is_hollow_and_one_without_a_figure_only_said() -> None:
    chart = draw_worths(
        [
            Whisker(name="preset", ratio=1.4, low=1.3, high=1.5, verdict="faster"),
            Whisker(name="depth", ratio=1.01, low=0.9, high=1.1, verdict="not known", sure=False),
            Whisker(name="budget", ratio=None, verdict="needed"),
        ]
    )
    preset, depth = check(chart)
    assert preset["x"] == [pytest.approx(40.0)]
    assert preset["error_x"]["arrayminus"] == [pytest.approx(10.0)]
    assert (preset["marker"]["symbol"], depth["marker"]["symbol"]) == ("circle", "circle-open")
    assert "budget: needed" in chart.caption
    low, high = chart.spec["layout"]["xaxis"]["range"]
    assert low < -10
    assert high > 50


def test_predictions_stand_against_the_line_of_equals() -> None:
    told = [
        Expectation(number=1, predicted=100.0, measured=110.0, low=90.0, high=112.0),
        Expectation(number=2, predicted=200.0, measured=190.0, again=True),
    ]
    line, first, again = check(draw_predictions(told))
    assert line["x"] == line["y"]
    assert (first["x"], first["y"]) == ([100.0], [110.0])
    assert first["error_x"]["array"] == [12.0]
    assert again["error_x"]["array"] == [None]


def test_configurations_that_nothing_beats_are_stars() -> None:
    told = [
        Balance(trial=1, name="a", tokens_per_s=100.0, cost=50.0, best=True),
        Balance(trial=2, name="b", tokens_per_s=90.0, cost=60.0, best=False),
    ]
    best, others = check(draw_balance(told, "% of memory", name="memory"))
    assert (best["marker"]["symbol"], best["x"], others["x"]) == ("star", [50.0], [60.0])


@pytest.mark.parametrize(
    "chart",
    [
        draw_trials([TrialPoint(number=0, name=hostile, tokens_per_s=None, role="failed", reason=hostile)]),
        draw_worths([Whisker(name=hostile, ratio=1.1, low=1.0, high=1.2, verdict=hostile)]),
        draw_balance([Balance(trial=0, name=hostile, tokens_per_s=1.0, cost=1.0, best=True)], "GB", "memory"),
    ],
    ids=["trials", "worths", "balance"],
)
def test_no_name_reaches_plotly_as_markup(chart: Chart) -> None:
    check(chart)
    assert "<a" not in str(chart.spec)
    assert "<b>" not in str(chart.spec)
    assert style.label(hostile) in str(chart.spec)


def test_nothing_to_draw_is_drawn_as_nothing() -> None:
    for chart in (draw_trials([]), draw_worths([]), draw_predictions([]), draw_balance([], "GB", "memory")):
        check(chart)
