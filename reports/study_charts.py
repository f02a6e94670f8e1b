"""Charts of a study: trials in order, what knobs were worth, predicted against measured, trade-offs.

Plain values in, plotly specifications and their sentences out; names may come from strangers and are escaped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from reports import style, text
from reports.charts import name_axis
from reports.page import Chart

most_points: Final = 1500  # of a chart: beyond them neighbours that say the same are left out
most_words: Final = 40  # trials that the words under a chart go through one by one
_row_px: Final = 34


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialPoint:
    """One trial of a study: measured with an interval, or failed for a reason."""

    number: int
    name: str  # its configuration, short
    tokens_per_s: float | None
    low: float | None = None
    high: float | None = None
    role: str = "candidate"  # recommended, baseline, candidate, unhealthy, early, failed, unfinished
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Whisker:
    """A ratio with its interval."""

    name: str
    ratio: float | None  # None: only said in words
    low: float = 1.0
    high: float = 1.0
    verdict: str = ""
    sure: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """What was expected of a trial, and what came of it. Tokens per second."""

    number: int
    predicted: float
    measured: float
    low: float | None = None
    high: float | None = None
    again: bool = False  # a run of what had run before


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """A configuration's speed against one cost."""

    trial: int
    name: str
    tokens_per_s: float
    cost: float  # percent of memory, GB, or millijoules
    best: bool


trial_roles: Final = {
    "candidate": ("measured", "circle", style.rest, 9),
    "early": ("stopped early, or a soak", "circle-open", style.rest, 9),
    "unhealthy": ("measured, but unhealthy", "diamond-open", style.bad, 10),
    "baseline": ("starting configuration", "square", style.wait, 12),
    "recommended": ("recommended", "star", style.work, 17),
    "failed": ("failed", "x-thin-open", style.bad, 10),
    "unfinished": ("not finished", "circle-open", style.muted, 9),
}
_unmeasured: Final = ("failed", "unfinished")


def draw_trials(points: Sequence[TrialPoint], name: str = "trials") -> Chart:
    """Tokens a second of every trial in the order of trying; those without a figure on a strip below."""
    shown = thin(points)
    traces = [
        _trial_trace(role, [point for point in shown if point.role == role])
        for role in trial_roles
        if any(point.role == role for point in shown)
    ]
    failed = any(point.role in _unmeasured for point in shown)
    layout = style.layout(
        showlegend=True,
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        margin={"l": 12, "r": 16, "t": 48, "b": 44},
        xaxis=style.axis(
            title=style.axis_title("trial, in the order of trying"), anchor="y2" if failed else "y"
        ),
        yaxis=style.axis(
            title=style.axis_title("tokens/s"), rangemode="tozero", domain=[0.16 if failed else 0, 1]
        ),
    )
    if failed:
        layout["yaxis2"] = style.axis(
            domain=[0, 0.1],
            range=[-1, 1],
            tickvals=[0],
            ticktext=["no figure"],
            fixedrange=True,
            showgrid=False,
        )
    left = len(points) - len(shown)
    said = [f"{text.count_of(left, 'candidate')} in between not drawn."] if left else []
    return Chart(
        name=name,
        spec={"data": traces, "layout": layout},
        caption=" ".join(
            ["Tokens per second of each trial, with its interval.", *said, *_say_trials(points)]
        ),
        height_px=380,
    )


def thin(points: Sequence[TrialPoint]) -> list[TrialPoint]:
    """At most `most_points`: the slowest candidates of each stretch give way, whatever stands out stays."""
    spare = [point for point in points if point.role in ("candidate", "early", "failed")]
    excess = len(points) - most_points
    if excess <= 0:
        return list(points)
    width = max(2, -(-len(spare) // max(1, len(spare) - excess)))
    stretches = [spare[i : i + width] for i in range(0, len(spare), width)]
    kept = {max(stretch, key=lambda point: point.tokens_per_s or 0.0).number for stretch in stretches}
    kept |= {point.number for point in points if point.role not in ("candidate", "early", "failed")}
    return [point for point in points if point.number in kept]


def _say_trials(points: Sequence[TrialPoint]) -> list[str]:
    said = [_trial_sentence(point) for point in points[:most_words]]
    more = len(points) - len(said)
    return [*said, f"And {more:,} more, in the table."] if more else said


def _trial_trace(role: str, points: Sequence[TrialPoint]) -> dict[str, Any]:
    words, symbol, colour, size = trial_roles[role]
    trace: dict[str, Any] = {
        "type": "scatter",
        "mode": "markers",
        "name": words,
        "x": [point.number for point in points],
        "y": [0 if role in _unmeasured else point.tokens_per_s for point in points],
        "marker": {"symbol": symbol, "color": colour, "size": size, "line": {"color": colour, "width": 2}},
        "customdata": [
            [style.label(point.name), style.label(point.reason or _rate_of(point))] for point in points
        ],
        "hovertemplate": "trial %{x}: %{customdata[0]}<br>%{customdata[1]}<extra></extra>",
    }
    if role in _unmeasured:
        trace["yaxis"] = "y2"
    else:
        trace["error_y"] = _whiskers(
            [(point.tokens_per_s, point.low, point.high) for point in points], colour
        )
    return trace


def _rate_of(point: TrialPoint) -> str:
    if point.low is None or point.high is None:
        return text.rate(point.tokens_per_s)
    return f"{text.rate(point.tokens_per_s)} ({text.rate_range(point.low, point.high)})"


def _trial_sentence(point: TrialPoint) -> str:
    words = trial_roles[point.role][0]
    said = text.missing(point.reason) if point.tokens_per_s is None else _rate_of(point)
    because = f" ({point.reason})" if point.tokens_per_s is not None and point.reason else ""
    return f"Trial {point.number}, {point.name}, {words}: {said}{because}."


def draw_worths(whiskers: Sequence[Whisker], name: str = "worths") -> Chart:
    """Gains with their intervals around nothing; those not told apart from it are hollow."""
    known = [each for each in whiskers if each.ratio is not None]
    reach = max((max(abs(each.low - 1), abs(each.high - 1)) for each in known), default=0.1) or 0.1
    layout = style.layout(
        xaxis=style.axis(
            title=style.axis_title("slower with it – faster with it, %"),
            zeroline=True,
            zerolinecolor=style.muted,
            range=[100 * min(min((each.low - 1 for each in known), default=0.0), -0.1 * reach) * 1.1,
                   100 * max(max((each.high - 1 for each in known), default=0.0), 0.1 * reach) * 1.1],
            fixedrange=True,
        ),
        yaxis=name_axis(),
        dragmode=False,
    )  # fmt: skip
    said = "; ".join(_worth_sentence(each) for each in whiskers) or "nothing to show"
    return Chart(
        name=name,
        spec={"data": [_worth_trace(each) for each in known], "layout": layout},
        caption=f"What each knob was worth, in per cent of speed. {said}.",
        height_px=76 + _row_px * max(1, len(known)),
    )


def _worth_trace(each: Whisker) -> dict[str, Any]:
    ratio = each.ratio or 1.0
    colour = (style.work if ratio > 1 else style.bad) if each.sure else style.muted
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [100 * (ratio - 1)],
        "y": [style.label(each.name)],
        "marker": {
            "symbol": "circle" if each.sure else "circle-open",
            "size": 11,
            "color": colour,
            "line": {"color": colour, "width": 2},
        },
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [100 * (each.high - ratio)],
            "arrayminus": [100 * (ratio - each.low)],
            "color": colour,
            "thickness": 2,
            "width": 6,
        },
        "hovertemplate": f"{style.label(_worth_sentence(each))}<extra></extra>",
    }


def _worth_sentence(each: Whisker) -> str:
    if each.ratio is None:
        return f"{each.name}: {each.verdict}"
    span = f"{100 * (each.low - 1):+.1f} to {100 * (each.high - 1):+.1f}"
    return f"{each.name}: {100 * (each.ratio - 1):+.1f} % ({span} %), {each.verdict}"


def draw_predictions(expected: Sequence[Expectation], name: str = "predictions") -> Chart:
    """Measured over predicted, with the line where both are equal."""
    first = [each for each in expected if not each.again][:most_points]
    again = [each for each in expected if each.again][:most_points]
    ends = [rate for each in expected for rate in (each.predicted, each.measured)]
    low, high = 0.9 * min(ends, default=0.0), 1.1 * max(ends, default=1.0)
    line = {
        "type": "scatter", "mode": "lines", "name": "as predicted", "x": [low, high], "y": [low, high],
        "line": {"color": style.muted, "width": 1.4, "dash": "dash"}, "hoverinfo": "skip",
    }  # fmt: skip
    traces = [line, _expected_trace("first run", "circle", style.work, first)]
    if again:
        traces.append(_expected_trace("run again", "circle-open", style.wait, again))
    layout = style.layout(
        showlegend=True,
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        margin={"l": 12, "r": 16, "t": 48, "b": 44},
        xaxis=style.axis(title=style.axis_title("predicted, tokens/s")),
        yaxis=style.axis(title=style.axis_title("measured, tokens/s")),
    )
    said = [
        f"Trial {each.number}: predicted {text.rate(each.predicted)}, measured {text.rate(each.measured)}."
        for each in expected[:most_words]
    ]
    more = len(expected) - len(said)
    return Chart(
        name=name,
        spec={"data": traces, "layout": layout},
        caption=" ".join(["Measured against predicted, with the interval of the prediction.", *said])
        + (f" And {more:,} more, in the table." if more else ""),
        height_px=420,
    )


def _expected_trace(words: str, symbol: str, colour: str, told: Sequence[Expectation]) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": words,
        "x": [each.predicted for each in told],
        "y": [each.measured for each in told],
        "marker": {"symbol": symbol, "color": colour, "size": 9, "line": {"color": colour, "width": 2}},
        "error_x": _whiskers([(each.predicted, each.low, each.high) for each in told], colour),
        "customdata": [each.number for each in told],
        "hovertemplate": "trial %{customdata}<br>predicted %{x:.4s}, measured %{y:.4s} tok/s<extra></extra>",
    }


def draw_balance(balances: Sequence[Balance], cost: str, name: str) -> Chart:
    """Speed over one cost; the configurations that nothing beats are stars. `cost`: the words of its axis."""
    shown = sorted(balances, key=lambda each: (not each.best, -each.tokens_per_s))[:most_points]
    kinds = [
        ("nothing is better in everything", "star", style.work, 14, [b for b in shown if b.best]),
        ("others", "circle", style.rest, 9, [b for b in shown if not b.best]),
    ]
    traces = [
        {
            "type": "scatter",
            "mode": "markers",
            "name": words,
            "x": [each.cost for each in told],
            "y": [each.tokens_per_s for each in told],
            "marker": {"symbol": symbol, "color": colour, "size": size},
            "customdata": [[each.trial, style.label(each.name)] for each in told],
            "hovertemplate": "trial %{customdata[0]}: %{customdata[1]}<br>%{y:.4s} tok/s<extra></extra>",
        }
        for words, symbol, colour, size, told in kinds
        if told
    ]
    layout = style.layout(
        showlegend=True,
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        margin={"l": 12, "r": 16, "t": 48, "b": 44},
        xaxis=style.axis(title=style.axis_title(cost)),
        yaxis=style.axis(title=style.axis_title("tokens/s")),
    )
    said = [
        f"Trial {each.trial}, {each.name}: {text.rate(each.tokens_per_s)} at {text.significant(each.cost)}."
        for each in shown[:most_words]
        if each.best
    ]
    return Chart(
        name=name,
        spec={"data": traces, "layout": layout},
        caption=" ".join([f"Tokens per second over {cost}. Best are:", *said]),
        height_px=340,
    )


def _whiskers(told: Sequence[tuple[float | None, float | None, float | None]], colour: str) -> dict[str, Any]:
    """Of (middle, low, high), each; None where an interval is not known."""
    return {
        "type": "data",
        "symmetric": False,
        "array": [None if mid is None or high is None else high - mid for mid, _, high in told],
        "arrayminus": [None if mid is None or low is None else mid - low for mid, low, _ in told],
        "color": colour,
        "thickness": 1.4,
        "width": 6,
    }
