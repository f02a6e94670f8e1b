"""Plain values in, plotly specifications out: one function a chart, each with its sentence in words.

Charts know neither runs nor studies, read no clock and do no input or output. The names they are given
may come from strangers and are escaped here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from reports import style, text
from reports.page import Chart

_row_px: Final = 34


@dataclass(frozen=True, slots=True, kw_only=True)
class RateBar:
    """One measured or derived rate with its interval, or the reason why there is none."""

    name: str
    tokens_per_s: float | None
    low: float | None = None
    high: float | None = None
    colour: str = style.rest
    reason: str | None = None


def draw_rates(bars: Sequence[RateBar], name: str = "rates") -> Chart:
    """Horizontal bars of tokens a second, intervals as whiskers; a bar without a value is only named."""
    known = [bar for bar in bars if bar.tokens_per_s is not None]
    reach = max((max(bar.high or 0, bar.tokens_per_s or 0) for bar in known), default=1.0)
    notes = [
        {
            "x": max(bar.high or 0, bar.tokens_per_s or 0),
            "y": style.label(bar.name),
            "text": _rate_with_range(bar),
            "showarrow": False,
            "xanchor": "left",
            "xshift": 8,
            "font": {"size": 12, "color": style.ink},
        }
        for bar in known
    ]
    layout = style.layout(
        xaxis=style.axis(range=[0, reach * 1.45], title=style.axis_title("tokens/s"), fixedrange=True),
        yaxis=name_axis(),
        annotations=notes,
        barmode="overlay",
        bargap=0.4,
        dragmode=False,
    )
    said = "; ".join(f"{bar.name}: {_rate_with_range(bar)}" for bar in bars)
    return Chart(
        name=name,
        spec={"data": [_rate_trace(bar) for bar in known], "layout": layout},
        caption=f"Tokens per second. {said}.",
        height_px=70 + _row_px * max(1, len(known)),
    )


def name_axis() -> dict[str, Any]:
    """The axis of horizontal bars, named in reading order."""
    return style.axis(
        autorange="reversed", fixedrange=True, showgrid=False, tickfont={"color": style.ink, "size": 13}
    )


def _rate_trace(bar: RateBar) -> dict[str, Any]:
    trace: dict[str, Any] = {
        "type": "bar",
        "orientation": "h",
        "y": [style.label(bar.name)],
        "x": [bar.tokens_per_s],
        "marker": {"color": bar.colour},
        "hovertemplate": f"%{{y}}: {style.label(_rate_with_range(bar))}<extra></extra>",
    }
    if bar.low is not None and bar.high is not None:
        trace["error_x"] = _whiskers([bar])
    return trace


def _whiskers(bars: Sequence[RateBar]) -> dict[str, Any]:
    above = [(bar.high - bar.tokens_per_s) if bar.high and bar.tokens_per_s else None for bar in bars]
    below = [(bar.tokens_per_s - bar.low) if bar.low and bar.tokens_per_s else None for bar in bars]
    return {
        "type": "data",
        "symmetric": False,
        "array": above,
        "arrayminus": below,
        "color": style.ink,
        "thickness": 1.4,
        "width": 6,
    }


def _rate_with_range(bar: RateBar) -> str:
    said = text.rate(bar.tokens_per_s, bar.reason)
    if bar.low is not None and bar.high is not None:
        said += f" ({text.rate_range(bar.low, bar.high)})"
    return said


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadSum:
    """Where one thread's time went: kind of time to seconds. Together they are the whole."""

    name: str
    parts_s: dict[str, float]


def draw_closing_sums(threads: Sequence[ThreadSum], kinds: dict[str, str], name: str = "threads") -> Chart:
    """Stacked bars that end at 100 %: one bar a thread; `kinds` gives each kind of time its role.

    Roles are "work", "wait", "copy" and "rest"; kinds of one role share a colour and differ in hatching.
    """
    labels = [style.label(thread.name) for thread in threads]
    totals = [sum(thread.parts_s.values()) or 1.0 for thread in threads]
    looks = _tell_apart(threads, kinds)
    traces = []
    for kind, role in kinds.items():
        seconds = [thread.parts_s.get(kind, 0.0) for thread in threads]
        if not any(seconds):
            continue
        shares = [100 * s / total for s, total in zip(seconds, totals, strict=True)]
        traces.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": style.label(kind),
                "y": labels,
                "x": shares,
                "customdata": [text.duration(s) for s in seconds],
                "marker": marker_of(role, looks[kind]),
                "hovertemplate": "%{y}<br>%{fullData.name}: %{x:.1f} %, %{customdata}<extra></extra>",
            }
        )
    layout = style.layout(
        barmode="stack",
        bargap=0.35,
        dragmode=False,
        meta={"legend": "wide"},
        showlegend=True,
        legend={"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0, "traceorder": "normal"},
        margin={"l": 12, "r": 16, "t": 12, "b": 40},
        xaxis=style.axis(range=[0, 100], ticksuffix=" %", fixedrange=True),
        yaxis=name_axis(),
    )
    return Chart(
        name=name,
        spec={"data": traces, "layout": layout},
        caption="Share of each thread's time. " + " ".join(_thread_sentence(thread) for thread in threads),
        height_px=118 + _row_px * max(1, len(threads)),
    )


def _tell_apart(threads: Sequence[ThreadSum], kinds: dict[str, str]) -> dict[str, int]:
    """The look of each kind: kinds of one role differ where one thread has both, the largest are plainest."""
    total = {kind: sum(thread.parts_s.get(kind, 0.0) for thread in threads) for kind in kinds}
    looks: dict[str, int] = {}
    for kind in sorted(kinds, key=lambda kind: -total[kind]):
        taken = {
            looks[other]
            for thread in threads
            for other in thread.parts_s
            if other in looks and kinds[other] == kinds[kind] and kind in thread.parts_s
        }
        looks[kind] = next(look for look in range(len(kinds)) if look not in taken)
    return looks


def _thread_sentence(thread: ThreadSum) -> str:
    total = sum(thread.parts_s.values())
    if total <= 0:
        return f"{thread.name}: {text.missing('no spans')}."
    largest = sorted(thread.parts_s.items(), key=lambda part: -part[1])[:4]
    return f"{thread.name}: " + ", ".join(f"{kind} {text.share(s / total)}" for kind, s in largest if s) + "."


_hatchings: Final = {"work": ("", "x", "+"), "wait": ("/", "\\", "-", "|"), "copy": (".",), "rest": ("",)}


def marker_of(role: str, position: int) -> dict[str, Any]:
    """Colour and hatching of the nth kind of time of a role."""
    shapes = _hatchings[role]
    marker: dict[str, Any] = {
        "color": f"var(--{role})",
        "line": {"color": style.paper, "width": 1},
        "opacity": 1.0 if position == 0 else max(0.45, 1 - 0.2 * position),
    }
    if shapes[position % len(shapes)]:
        marker["pattern"] = {
            "shape": shapes[position % len(shapes)],
            "fillmode": "overlay",
            "fgcolor": style.paper,
            "fgopacity": 0.7,
            "size": 6,
            "solidity": 0.22,
        }
    return marker
