"""What moved between two runs: one bar a part of a stage's time, to the right where it takes longer now.

Plain values in, a plotly specification and its sentence out; names may come from strangers and are escaped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from reports import style, text
from reports.charts import marker_of, name_axis
from reports.page import Chart

_row_px: Final = 30
_within_noise: Final = 0.35  # opacity


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A part's change, in seconds for a number of tokens that is the same for all."""

    name: str
    role: str  # work, wait, copy or rest
    seconds: float
    low: float  # its interval
    high: float
    beyond_noise: bool

    @property
    def words(self) -> str:
        """The change for people: `+12 ms`, `−1.2 s (within noise)`."""
        said = f"{'−' if self.seconds < 0 else '+'}{text.duration(abs(self.seconds))}"
        return said if self.beyond_noise else f"{said} (within noise)"


def draw_changes(moves: Sequence[Move], per: str, name: str = "changes") -> Chart:
    """Bars from zero with their intervals as whiskers; those within noise are pale. `per`: of what."""
    reach = max((max(abs(move.low), abs(move.high), abs(move.seconds)) for move in moves), default=1.0) or 1.0
    scale, unit = (1.0, "s") if reach >= 1 else (1e3, "ms") if reach >= 1e-3 else (1e6, "µs")
    layout = style.layout(
        xaxis=style.axis(
            range=[-1.5 * reach * scale, 1.5 * reach * scale],
            title=style.axis_title(f"{unit} {per}: less in B – more in B"),
            fixedrange=True,
            zeroline=True,
            zerolinecolor=style.muted,
            nticks=7,
        ),
        yaxis=name_axis(),
        annotations=[_note(move, scale) for move in moves],
        barmode="overlay",
        bargap=0.4,
        dragmode=False,
    )
    said = "; ".join(f"{move.name} {move.words}" for move in moves) or "nothing that can be seen"
    return Chart(
        name=name,
        spec={"data": [_bar(move, scale) for move in moves], "layout": layout},
        caption=f"Change from A to B, {per}. {said}.",
        height_px=70 + _row_px * max(1, len(moves)),
    )


def _bar(move: Move, scale: float) -> dict[str, Any]:
    marker = marker_of(move.role, 0)
    return {
        "type": "bar",
        "orientation": "h",
        "y": [style.label(move.name)],
        "x": [move.seconds * scale],
        "marker": marker if move.beyond_noise else {**marker, "opacity": _within_noise},
        "error_x": {
            "type": "data", "symmetric": False, "array": [max(move.high - move.seconds, 0.0) * scale],
            "arrayminus": [max(move.seconds - move.low, 0.0) * scale],
            "color": style.ink, "thickness": 1.2, "width": 5,
        },
        "hovertemplate": f"%{{y}}: {style.label(move.words)}<extra></extra>",
    }  # fmt: skip


def _note(move: Move, scale: float) -> dict[str, Any]:
    right = move.seconds >= 0
    return {
        "x": (max(move.high, move.seconds, 0.0) if right else min(move.low, move.seconds, 0.0)) * scale,
        "y": style.label(move.name),
        "text": style.label(move.words),
        "showarrow": False,
        "xanchor": "left" if right else "right",
        "xshift": 8 if right else -8,
        "font": {"size": 12, "color": style.ink if move.beyond_noise else style.muted},
    }
