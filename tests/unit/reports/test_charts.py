from __future__ import annotations

from typing import Any

import plotly.graph_objects as go
import pytest

from reports import style
from reports.charts import RateBar, ThreadSum, draw_closing_sums, draw_rates
from reports.page import Chart

hostile = '<a href="https://evil">x</a><b>'
kinds = {
    "forward": "work",
    "backward": "work",
    "gather": "work",
    "copy": "copy",
    "wait": "wait",
    "rest": "rest",
}


def check(chart: Chart) -> list[dict[str, Any]]:
    """The chart's traces, after plotly has accepted every key and value."""
    go.Figure(chart.spec)
    return chart.spec["data"]


def test_a_rate_without_a_value_is_named_with_its_reason_and_has_no_bar() -> None:
    chart = draw_rates(
        [
            RateBar(name="measured", tokens_per_s=11_500, low=11_300, high=11_700),
            RateBar(name="targets alone", tokens_per_s=None, reason="no spans"),
        ]
    )
    assert [trace["x"] for trace in check(chart)] == [[11_500]]
    assert "targets alone: n/a: no spans" in chart.caption
    assert "11.3 to 11.7" in chart.caption


def test_whiskers_are_the_interval() -> None:
    (trace,) = check(draw_rates([RateBar(name="m", tokens_per_s=100.0, low=90.0, high=130.0)]))
    assert trace["error_x"]["array"] == [30.0]
    assert trace["error_x"]["arrayminus"] == [10.0]


def test_closing_sums_end_at_a_hundred() -> None:
    threads = [
        ThreadSum(name="target 0", parts_s={"forward": 7.0, "gather": 0.5, "copy": 2.0, "rest": 0.5}),
        ThreadSum(name="drafter 0", parts_s={"backward": 1.0, "wait": 3.0}),
    ]
    traces = check(draw_closing_sums(threads, kinds))
    for position in range(len(threads)):
        assert sum(trace["x"][position] for trace in traces) == pytest.approx(100)


def test_kinds_of_one_thread_look_different_and_the_largest_are_plain() -> None:
    threads = [
        ThreadSum(name="target 0", parts_s={"forward": 7.0, "gather": 0.5}),
        ThreadSum(name="drafter 0", parts_s={"backward": 1.0}),
    ]
    looks = {trace["name"]: trace["marker"] for trace in check(draw_closing_sums(threads, kinds))}
    assert looks["forward"] == looks["backward"]
    assert "pattern" not in looks["forward"]
    assert looks["gather"] != looks["forward"]


def test_a_thread_without_spans_is_not_zero_percent_of_something() -> None:
    chart = draw_closing_sums([ThreadSum(name="drafter 3", parts_s={})], kinds)
    assert "drafter 3: n/a: no spans." in chart.caption


@pytest.mark.parametrize(
    "chart",
    [
        draw_rates([RateBar(name=hostile, tokens_per_s=1.0)]),
        draw_closing_sums([ThreadSum(name=hostile, parts_s={hostile: 1.0})], {hostile: "work"}),
    ],
    ids=["rates", "threads"],
)
def test_no_name_reaches_plotly_as_markup(chart: Chart) -> None:
    check(chart)
    assert "<a" not in str(chart.spec)
    assert "<b>" not in str(chart.spec)
    assert style.label(hostile) in str(chart.spec)


def test_control_characters_in_names_are_shown_not_sent() -> None:
    assert style.label("a\x1b[31mb") == "a\\x1b[31mb"
