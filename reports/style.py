"""Names and roles of colours, and the plotly layout all charts share.

Colours are CSS variables, defined for light, dark and paper in templates/page.css and resolved by
templates/page.js when a chart is drawn. The palette is Okabe and Ito's, which colour-blind readers can
tell apart; kinds of time differ in hatching as well. Knows nothing of what a chart shows.
"""

from __future__ import annotations

import html
from typing import Any, Final

from dflash.contract.rundir import printable

work: Final = "var(--work)"
wait: Final = "var(--wait)"
copy: Final = "var(--copy)"
rest: Final = "var(--rest)"
accent: Final = "var(--accent)"
bad: Final = "var(--bad)"
ink: Final = "var(--ink)"
muted: Final = "var(--muted)"
grid: Final = "var(--grid)"
paper: Final = "var(--card)"

series: Final = tuple(f"var(--series-{n})" for n in range(1, 8))
dashes: Final = ("solid", "dash", "dot", "dashdot")


def line(position: int) -> dict[str, Any]:
    """How the nth of several lines is drawn: colours first, then other dashes."""
    dash = dashes[position // len(series) % len(dashes)]
    return {"color": series[position % len(series)], "width": 1.6, "dash": dash}


def label(name: object) -> str:
    """`name` from a run as plotly text, which would otherwise read `<a href=…>` as markup."""
    return html.escape(printable(str(name)), quote=False)


def layout(**changes: Any) -> dict[str, Any]:
    """The layout of every chart, with `changes` laid over."""
    base: dict[str, Any] = {
        "font": {"family": "system-ui, sans-serif", "size": 13, "color": ink},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "margin": {"l": 12, "r": 16, "t": 12, "b": 40},
        "showlegend": False,
        "hoverlabel": {"align": "left", "font": {"size": 12}},
        "separators": ".,",
    }
    return {**base, **changes}


def axis(**changes: Any) -> dict[str, Any]:
    """One axis in the shared style, with `changes` laid over."""
    base: dict[str, Any] = {
        "automargin": True,
        "gridcolor": grid,
        "linecolor": grid,
        "zerolinecolor": grid,
        "tickfont": {"color": muted, "size": 12},
    }
    return {**base, **changes}


def axis_title(words: str) -> dict[str, Any]:
    """The title of an axis."""
    return {"text": words, "standoff": 8, "font": {"color": muted, "size": 12}}
