from __future__ import annotations

import plotly.graph_objects as go
import pytest

from reports.waterfall import Step, draw_waterfall

steps = (
    Step(name="measured", role="work", reaches=100.0, low=98.0, high=103.0),
    Step(name="<b>copies", role="copy", reaches=120.0, gained=20.0),
    Step(name="waits", role="wait", reaches=150.0, gained=30.0),
    Step(name="targets alone", role="work", reaches=150.0),
    Step(name="limit", role="rest", reaches=None, reason="no ceilings"),
)


def test_each_bar_begins_where_the_one_above_ends() -> None:
    chart = draw_waterfall(steps)
    go.Figure(chart.spec)
    pieces = [(trace["base"][0], trace["base"][0] + trace["x"][0]) for trace in chart.spec["data"]]
    assert pieces == [(0, 100), (100, 120), (120, 150), (0, 150)]


def test_a_step_back_is_drawn_from_the_lower_end() -> None:
    back = Step(name="counted elsewhere", role="rest", reaches=90.0, gained=-10.0)
    (bar,) = draw_waterfall([back]).spec["data"]
    assert (bar["base"], bar["x"]) == ([90.0], [10.0])
    assert back.change.startswith("−10")


def test_what_is_unknown_has_no_bar_but_a_reason() -> None:
    chart = draw_waterfall(steps)
    assert len(chart.spec["data"]) == 4
    assert "limit: n/a: no ceilings" in chart.caption


def test_names_from_a_run_are_text() -> None:
    assert "<b>copies" not in str(draw_waterfall(steps).spec)


@pytest.mark.parametrize("few", [(), steps[4:]])
def test_nothing_known_is_still_a_chart(few: tuple[Step, ...]) -> None:
    go.Figure(draw_waterfall(few).spec)
