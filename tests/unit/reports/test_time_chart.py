from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from reports.series import Holds, Series
from reports.time_chart import Lane, Panel, Span, draw_over_time


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


def test_lanes_stand_above_the_panels_on_the_same_axis_and_are_told() -> None:
    lanes = [
        Lane(name="<b>cause", pieces_s=((1.0, 2.0), (4.0, 4.5))),
        Lane(name="gpu", pieces_s=((0.0, 1.0),)),
    ]
    chart = draw_over_time([queues, loss], lanes=lanes)
    figure = go.Figure(chart.spec)
    assert {trace.xaxis for trace in figure.data} == {None}
    domains = [figure.layout[name].domain for name in ("yaxis", "yaxis2", "yaxis3")]
    assert domains[0][0] > domains[1][1] > domains[1][0] > domains[2][1]
    assert list(figure.data[0].x) == [1.0, 2.0, None, 4.0, 4.5, None]
    assert "<b>cause" not in str(chart.spec)
    assert "2\u00a0times, 1.50\u00a0s in all" in chart.caption


def test_bands_without_a_name_are_only_shaded_and_never_thousands() -> None:
    spans = [Span(name="warm-up", start_s=0, end_s=1)]
    spans += [Span(name="", start_s=n, end_s=n + 0.1 * (n == 77) + 0.1) for n in range(3000)]
    layout = draw_over_time([loss], spans).spec["layout"]
    assert len(layout["shapes"]) <= 50
    assert 77 in [shape["x0"] for shape in layout["shapes"]]
    assert len([note for note in layout["annotations"] if "warm-up" in note["text"]]) == 1
