from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from reports.series import Holds, Series
from reports.time_chart import Panel, Span, draw_over_time


def line(name: str, values: list[float], *, holds: Holds = "no") -> Series:
    return Series(name=name, t_s=np.arange(len(values), dtype=float), values=np.array(values), holds=holds)


queues = Panel(title="Queue depth", unit="batches", series=(line("q_pre", [1, 2]), line("q_hs", [0, 1])))
loss = Panel(title="Loss", unit="nats", series=(line("loss", [2.0, np.nan, 1.0]),), floor_zero=False)
power = Panel(title="GPU power", unit="W", reason="no driver")


def test_panels_share_one_time_axis_and_do_not_overlap() -> None:
    chart = draw_over_time([queues, loss])
    figure = go.Figure(chart.spec)
    assert {trace.xaxis for trace in figure.data} == {None}
    low, high = figure.layout.yaxis2.domain, figure.layout.yaxis.domain
    assert 0 <= low[0] < low[1] < high[0] < high[1] <= 1


def test_a_panel_without_data_takes_no_room() -> None:
    assert draw_over_time([queues, power, loss]).height_px == draw_over_time([queues, loss]).height_px


def test_a_gap_is_drawn_as_a_gap_and_counted_in_words() -> None:
    chart = draw_over_time([loss])
    (trace,) = chart.spec["data"]
    assert np.isnan(trace["y"]).any()
    assert trace["connectgaps"] is False
    assert "1\u00a0unreadable value left out" in chart.caption


def test_the_caption_has_the_numbers() -> None:
    assert "loss median 1.50 (1.00 to 2.00)" in draw_over_time([loss]).caption


def test_names_from_a_run_are_text() -> None:
    panel = Panel(title="<i>t", unit="<u>", series=(line("<a href=x>", [1.0]), line("b", [1.0])))
    chart = draw_over_time([panel], [Span(name="<s>", start_s=0, end_s=1)])
    go.Figure(chart.spec)
    for markup in ("<i>", "<u>", "<a ", "<s>"):
        assert markup not in str(chart.spec)


def test_nothing_recorded_is_said() -> None:
    chart = draw_over_time([power])
    go.Figure(chart.spec)
    assert chart.caption == "Nothing was recorded over time."


def test_many_long_series_stay_small() -> None:
    rng = np.random.default_rng(0)
    many = tuple(line(f"gpu {i}", list(rng.normal(size=20_000))) for i in range(64))
    chart = draw_over_time([Panel(title="GPU", unit="%", series=many)])
    assert sum(len(trace["x"]) for trace in chart.spec["data"]) <= 42_000


def test_the_rate_of_a_window_is_drawn_over_that_window() -> None:
    series = (line("depth", [1, 2], holds="until_next"), line("rate", [1, 2], holds="since_last"))
    chart = draw_over_time([Panel(title="x", unit="y", series=series)])
    assert [trace["line"]["shape"] for trace in chart.spec["data"]] == ["hv", "vh"]
