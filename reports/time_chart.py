"""Many quantities over one time axis: panels under one another that zoom together.

Plain values in, a plotly specification and its sentence out. Knows neither runs nor studies; names may come
from strangers and are escaped here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from reports import style, text
from reports.page import Chart
from reports.series import Series, prepare

_panel_px: Final = 128
_lane_px: Final = 32
_lanes_head_px: Final = 26
_stroke: Final = 0.0015  # of the time, drawn at least
_most_bands: Final = 40  # drawn behind the panels; lanes show all
_shapes: Final = {"until_next": "hv", "since_last": "vh", "no": "linear"}
_points_in_all: Final = 40_000  # a day of many series must still open at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One strip of the time chart: its series, or why there are none."""

    title: str
    unit: str
    series: tuple[Series, ...] = ()
    reason: str | None = None
    floor_zero: bool = True  # the axis starts at zero
    ceiling: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A stretch of time with a name, drawn behind the panels. Without a name it is only shaded."""

    name: str
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """What was so at times: one row of bars above the panels."""

    name: str
    pieces_s: tuple[tuple[float, float], ...]
    colour: str = style.muted


@dataclass(slots=True)
class _Strip:
    """Traces and axes of the panels drawn so far."""

    traces: list[dict[str, Any]] = field(default_factory=list)
    axes: dict[str, Any] = field(default_factory=dict)
    titles: list[dict[str, Any]] = field(default_factory=list)
    sentences: list[str] = field(default_factory=list)


def draw_over_time(
    panels: Sequence[Panel], spans: Sequence[Span] = (), lanes: Sequence[Lane] = (), name: str = "time"
) -> Chart:
    """Panels under one another over one time axis, so that zooming one zooms all; lanes come first."""
    shown = [panel for panel in panels if any(len(s.t_s) for s in panel.series)]
    lanes_px = _lanes_head_px + _lane_px * len(lanes) if lanes else 0
    whole_px = max(1, lanes_px + _panel_px * len(shown))
    strip = _Strip()
    if lanes:
        _draw_lanes(strip, lanes, lanes_px / whole_px, whole_px)
    points = min(1500, max(200, _points_in_all // max(1, sum(len(panel.series) for panel in shown))))
    for place, panel in enumerate(shown):
        top = 1 - (lanes_px + _panel_px * place) / whole_px
        _draw_panel(strip, panel, place + bool(lanes), (top, _panel_px / whole_px), points)
    strips = len(shown) + bool(lanes)
    layout = style.layout(
        showlegend=True,
        hovermode="x unified",
        hoversubplots="axis",
        margin={"l": 12, "r": 16, "t": 30, "b": 44},
        xaxis=style.axis(
            title=style.axis_title("seconds since the start"),
            anchor="y" if strips < 2 else f"y{strips}",
            showspikes=True,
            spikemode="across",
            spikethickness=1,
            spikedash="dot",
            spikecolor=style.muted,
        ),
        annotations=strip.titles + [_span_title(span) for span in spans if span.name],
        shapes=[_span_shape(span) for span in _longest(spans)],
        **strip.axes,
    )
    return Chart(
        name=name,
        spec={"data": strip.traces, "layout": layout},
        caption=" ".join(strip.sentences) or "Nothing was recorded over time.",
        height_px=74 + max(_panel_px, whole_px),
    )


def _longest(spans: Sequence[Span]) -> list[Span]:
    """Those with names, and the longest of the others: thousands would make a chart slow."""
    plain = sorted((span for span in spans if not span.name), key=lambda span: span.start_s - span.end_s)
    return [*(span for span in spans if span.name), *plain[:_most_bands]]


def _draw_lanes(strip: _Strip, lanes: Sequence[Lane], height: float, whole_px: int) -> None:
    """Bars as broken lines, one trace a lane, each under its name."""
    foot = 8 / whole_px
    strip.axes["yaxis"] = style.axis(
        domain=[1 - height + foot, 1 - _lanes_head_px / whole_px],
        anchor="x",
        range=[len(lanes) - 0.5, -0.5],
        fixedrange=True,
        showgrid=False,
        zeroline=False,
        showticklabels=False,
    )
    strip.titles.append(_note("<b>Findings and idle GPUs</b>", 0, 1))
    last_s = max(end for lane in lanes for _, end in lane.pieces_s)
    for row, lane in enumerate(lanes):
        # A moment in a long run is still a stroke.
        x = [at for start, end in lane.pieces_s for at in (start, max(end, start + _stroke * last_s), None)]
        strip.traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "x": x,
                "y": [row + 0.25] * len(x),
                "yaxis": "y",
                "connectgaps": False,
                "showlegend": False,
                "hoverinfo": "skip",
                "line": {"color": lane.colour, "width": 9},
            }
        )
        title = _note(style.label(lane.name), 0, row - 0.5)
        strip.titles.append({**title, "yref": "y", "font": {"size": 11, "color": style.muted}})
        total = sum(end - start for start, end in lane.pieces_s)
        often = text.count_of(len(lane.pieces_s), "time")
        strip.sentences.append(f"{lane.name}: {often}, {text.duration(total)} in all.")


def _draw_panel(strip: _Strip, panel: Panel, number: int, place: tuple[float, float], points: int) -> None:
    """A panel as the nth strip. `place`: its top and its height, as shares of the chart."""
    top, height = place
    head = min(0.22, 26 / _panel_px) * height
    suffix = "" if number == 0 else str(number + 1)
    domain = [max(0.0, top - height + head / 2), top - head]
    axis = style.axis(domain=domain, anchor="x", nticks=4, fixedrange=True)
    if panel.ceiling is not None:
        axis["range"] = [0, panel.ceiling * 1.04]
    elif panel.floor_zero:
        axis["rangemode"] = "tozero"
    strip.axes["yaxis" + suffix] = axis
    if len(panel.series) > 1:
        strip.axes["legend" + suffix] = {
            "orientation": "h", "x": 1, "xanchor": "right", "y": top + 0.002, "yanchor": "top",
            "font": {"size": 11}, "bgcolor": "rgba(0,0,0,0)",
        }  # fmt: skip
    strip.titles.append(_note(f"<b>{style.label(panel.title)}</b>  {style.label(panel.unit)}", 0, top))
    said = []
    for position, one in enumerate(panel.series):
        ready = prepare(one, points)
        strip.traces.append(
            {
                "type": "scatter",
                "mode": "lines" if len(ready.t_s) > 1 else "markers",
                "name": style.label(one.name),
                "x": ready.t_s,
                "y": ready.values,
                "yaxis": "y" + suffix,
                "legend": "legend" + suffix,
                "showlegend": len(panel.series) > 1,
                "line": {**style.line(position), "shape": _shapes[one.holds]},
                "connectgaps": False,
                "hovertemplate": f"%{{y:.4~g}} {style.label(panel.unit)}",
            }
        )
        said.append(_series_sentence(one, ready.unreadable, ready.set_aside))
    strip.sentences.append(f"{panel.title}, {panel.unit}: {'; '.join(said)}.")


def _series_sentence(series: Series, unreadable: int, set_aside: int) -> str:
    finite = series.values[np.isfinite(series.values)]
    if not len(finite):
        said = f"{series.name} {text.missing('no reading is a number')}"
    else:
        low, middle, high = (text.significant(float(f(finite))) for f in (np.min, np.median, np.max))
        said = f"{series.name} median {middle} ({low} to {high})"
    if unreadable:
        said += f", {text.count_of(unreadable, 'unreadable value')} left out"
    if set_aside:
        said += f", {text.count_of(set_aside, 'reading')} with a backward clock set aside"
    return said


def _note(words: str, x: float, y: float) -> dict[str, Any]:
    return {
        "text": words, "x": x, "y": y, "xref": "paper", "yref": "paper", "xanchor": "left", "yanchor": "top",
        "showarrow": False, "font": {"size": 12, "color": style.ink},
    }  # fmt: skip


def _span_shape(span: Span) -> dict[str, Any]:
    return {
        "type": "rect", "xref": "x", "yref": "paper", "x0": span.start_s, "x1": span.end_s, "y0": 0, "y1": 1,
        "fillcolor": style.muted, "opacity": 0.1, "line": {"width": 0}, "layer": "below",
    }  # fmt: skip


def _span_title(span: Span) -> dict[str, Any]:
    return {
        "text": style.label(span.name), "x": span.start_s, "y": 1, "xref": "x", "yref": "paper",
        "xanchor": "left", "yanchor": "bottom", "showarrow": False,
        "font": {"size": 11, "color": style.muted},
    }  # fmt: skip
