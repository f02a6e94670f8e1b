"""From the measured rate to the limit, one loss after the other: what each step would give back.

Every step removes one kind of time of the stage that limits the pipeline, those above it already gone, so
the steps end exactly at what that stage allows alone. Plain values in; knows nothing of runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from reports import style, text
from reports.charts import marker_of, name_axis
from reports.page import Chart

_row_px: Final = 34


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One row, in tokens a second: a whole from 0 (`gained` None), or what a removed loss adds."""

    name: str
    role: str  # work, wait, copy or rest
    reaches: float | None  # the rate after it; None: unknown
    gained: float | None = None
    low: float | None = None
    high: float | None = None
    reason: str | None = None  # why `reaches` is unknown

    @property
    def rate(self) -> str:
        """The rate after the step, for people."""
        return text.rate(self.reaches, self.reason)

    @property
    def change(self) -> str:
        """What the step adds, for people; empty for a whole, which adds nothing."""
        if self.gained is None:
            return ""
        return f"{'+' if self.gained >= 0 else '−'}{text.rate(abs(self.gained))}"


def draw_waterfall(steps: Sequence[Step], name: str = "waterfall") -> Chart:
    """Horizontal bars under one another, each beginning where the one above ends."""
    known = [step for step in steps if step.reaches is not None]
    reach = max((step.reaches or 0.0 for step in known), default=1.0)
    layout = style.layout(
        xaxis=style.axis(
            range=[0, reach * 1.35],
            nticks=6,
            tickangle=0,
            title=style.axis_title("tokens/s"),
            fixedrange=True,
        ),
        yaxis=name_axis(),
        annotations=[_note(step) for step in known],
        barmode="overlay",
        bargap=0.35,
        dragmode=False,
    )
    return Chart(
        name=name,
        spec={"data": [_bar(step) for step in known], "layout": layout},
        caption="From the measured rate to the limit, in tokens per second. " + _sentence(steps),
        height_px=70 + _row_px * max(1, len(known)),
    )


def _bar(step: Step) -> dict[str, Any]:
    assert step.reaches is not None
    length = step.reaches if step.gained is None else abs(step.gained)
    base = 0.0 if step.gained is None else min(step.reaches, step.reaches - step.gained)
    trace: dict[str, Any] = {
        "type": "bar",
        "orientation": "h",
        "y": [style.label(step.name)],
        "x": [length],
        "base": [base],
        "marker": {"color": style.accent} if step.low is not None else marker_of(step.role, 0),
        "hovertemplate": f"%{{y}}: {style.label(_words(step))}<extra></extra>",
    }
    if step.low is not None and step.high is not None:
        trace["error_x"] = {
            "type": "data", "symmetric": False, "array": [step.high - step.reaches],
            "arrayminus": [step.reaches - step.low], "color": style.ink, "thickness": 1.4, "width": 6,
        }  # fmt: skip
    return trace


def _note(step: Step) -> dict[str, Any]:
    assert step.reaches is not None
    return {
        "x": max(step.reaches, step.reaches - (step.gained or 0.0), step.high or 0.0),
        "y": style.label(step.name),
        "text": step.change or step.rate,
        "showarrow": False,
        "xanchor": "left",
        "xshift": 8,
        "font": {"size": 12, "color": style.ink},
    }


def _sentence(steps: Sequence[Step]) -> str:
    return "; ".join(f"{step.name}: {_words(step)}" for step in steps) + "."


def _words(step: Step) -> str:
    return f"{step.change}, to {step.rate}" if step.change else step.rate
