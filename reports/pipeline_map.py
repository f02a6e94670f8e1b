"""The pipeline as a picture: stages, queues and copies in the order of the data, wide or tall.

Computes positions; templates/pipeline_map.svg.j2 draws them. Knows nothing of where the figures come from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from markupsafe import Markup

from reports import text
from reports.page import render_page

_wide_px: Final = 1190
_tall_px: Final = 360
_between_px: Final = 20
_apart_px: Final = 12
_line_px: Final = 17
_head_px: Final = 52  # title and bar of a stage
_queue_px: Final = 138
_queue_row_px: Final = 76


Line = tuple[str, str]  # what, and how much


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCard:
    """One stage thread: its kinds of time by role, and what it waits for, in words."""

    title: str
    device: str
    shares: dict[str, float]  # role (work, wait, copy, rest) to share of the thread's time; {}: unknown
    lines: tuple[Line, ...]
    limits: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueCard:
    """One bounded queue over the measured time."""

    title: str
    capacity: int | None
    mean_depth: float | None
    full_share: float | None
    empty_share: float | None

    @property
    def fill(self) -> float:
        """Mean depth as a share of the capacity, 0 when unknown (the caption says n/a)."""
        if self.mean_depth is None or not self.capacity:
            return 0.0
        return max(0.0, min(1.0, self.mean_depth / self.capacity))

    @property
    def level(self) -> str:
        depth = text.missing() if self.mean_depth is None else f"{self.mean_depth:.1f}"
        return depth if self.capacity is None else f"{depth} of {self.capacity}"

    @property
    def lines(self) -> tuple[str, str]:
        return f"full {text.share(self.full_share)}", f"empty {text.share(self.empty_share)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteCard:
    """What has no thread of its own: the transport with its copies, the optimizer."""

    title: str
    lines: tuple[Line, ...]
    dashed: bool = False


Card = StageCard | QueueCard | NoteCard


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineMap:
    """All cards, in columns from the data to the optimizer. Empty columns are left out."""

    columns: tuple[tuple[Card, ...], ...]


@dataclass(frozen=True, slots=True)
class Box:
    """A card at its place, in the picture's own pixels."""

    card: Card
    x: float
    y: float
    width: float
    height: float

    @property
    def kind(self) -> str:
        return {StageCard: "stage", QueueCard: "queue", NoteCard: "note"}[type(self.card)]

    @property
    def middle(self) -> float:
        return self.y + self.height / 2


def draw_map(pipeline: PipelineMap, *, tall: bool = False) -> Markup:
    """The picture as inline SVG, 1190 px wide for screens or 360 px wide for telephones."""
    columns = [column for column in pipeline.columns if column]
    if tall:
        boxes, arrows, height = _place_tall(columns)
    else:
        boxes, arrows, height = _place_wide(columns)
    svg = render_page(
        "pipeline_map.svg.j2",
        boxes=boxes,
        arrows=arrows,
        width=_tall_px if tall else _wide_px,
        height=height,
        tall=tall,
        segments=_segments,
        sentence=describe(pipeline),
        name="tall" if tall else "wide",
    )
    return Markup(svg)  # escaped by the template


def describe(pipeline: PipelineMap) -> str:
    """The picture in words."""
    return " ".join(_card_sentence(card) for column in pipeline.columns for card in column)


def _card_sentence(card: Card) -> str:
    if isinstance(card, QueueCard):
        return f"{card.title}: mean depth {card.level}, {', '.join(card.lines)}."
    said = "; ".join(f"{what} {how_much}".strip() for what, how_much in card.lines)
    limits = "limits the run; " if isinstance(card, StageCard) and card.limits else ""
    return f"{card.title}: {limits}{said or text.missing()}."


def _place_wide(columns: Sequence[Sequence[Card]]) -> tuple[list[Box], list[str], float]:
    widths = [_column_width(column[0]) for column in columns]
    # The columns share what the picture's width leaves, so that it is filled whatever is missing.
    stretch = (_wide_px - 2 - _between_px * (len(columns) - 1)) / max(1, sum(widths))
    # Columns of as many cards stand in rows, so that their arrows run straight.
    pitches: dict[int, float] = {}
    for column in columns:
        tallest = max(_height(card) + _apart_px for card in column)
        pitches[len(column)] = max(tallest, pitches.get(len(column), 0.0))
    height = max((count * pitch for count, pitch in pitches.items()), default=0.0)
    placed: list[list[Box]] = []
    x = 1.0
    for column, width in zip(columns, widths, strict=True):
        pitch = pitches[len(column)]
        top = (height - pitch * len(column)) / 2
        placed.append(
            [
                Box(card, x, top + pitch * row + (pitch - _height(card)) / 2, width * stretch, _height(card))
                for row, card in enumerate(column)
            ]
        )
        x += width * stretch + _between_px
    arrows = [path for left, right in pairwise(placed) for path in _arrows_between(left, right)]
    return [box for column in placed for box in column], arrows, height


def _arrows_between(left: Sequence[Box], right: Sequence[Box]) -> list[str]:
    pairs = (
        list(zip(left, right, strict=True))
        if len(left) == len(right)
        else [(a, b) for a in left for b in right]
    )
    paths = []
    for a, b in pairs:
        start, end = a.x + a.width, b.x - 5
        bend = (end - start) / 2
        paths.append(
            f"M{start:.1f},{a.middle:.1f} C{start + bend:.1f},{a.middle:.1f} "
            f"{end - bend:.1f},{b.middle:.1f} {end:.1f},{b.middle:.1f}"
        )
    return paths


def _place_tall(columns: Sequence[Sequence[Card]]) -> tuple[list[Box], list[str], float]:
    boxes: list[Box] = []
    arrows: list[str] = []
    y = 1.0
    for column in columns:
        if boxes:
            arrows.append(f"M{_tall_px / 2},{y:.1f} L{_tall_px / 2},{y + _between_px - 6:.1f}")
            y += _between_px
        for position, card in enumerate(column):
            y += 6 if position else 0
            height = _queue_row_px if isinstance(card, QueueCard) else _height(card)
            boxes.append(Box(card, 1, y, _tall_px - 2, height))
            y += height
    return boxes, arrows, y + 1


def _column_width(card: Card) -> int:
    if isinstance(card, QueueCard):
        return 80
    return 202 if isinstance(card, StageCard) else 164


def _height(card: Card) -> float:
    if isinstance(card, QueueCard):
        return _queue_px
    head = _head_px if isinstance(card, StageCard) else 34
    limit = _line_px if isinstance(card, StageCard) and card.limits else 0
    return head + limit + _line_px * len(card.lines) + 8


def _segments(card: StageCard, width: float) -> list[tuple[str, float, float]]:
    """(role, start, length) of each part of a stage's bar."""
    parts = []
    start = 0.0
    for role in ("work", "copy", "wait", "rest"):
        length = width * card.shares.get(role, 0.0)
        if length > 0:
            parts.append((role, start, length))
            start += length
    return parts
