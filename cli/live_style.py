"""Colours, bars and sparklines of the live view. Knows nothing of runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.text import Text

# The colours of the reports on a dark screen.
palette = {
    "ground": "#12161a",
    "card": "#1b2026",
    "grid": "#343c45",
    "ink": "#e6eaee",
    "muted": "#9aa5b1",
    "accent": "#6cbdf0",
    "good": "#2fc796",
    "bad": "#ff9b70",
    "work": "#4aa3dc",
    "copy": "#d98fb8",
    "wait": "#e69f00",
    "open": "#6b7480",
}
styles = {name: colour for name, colour in palette.items() if name not in ("ground", "card", "grid")}
marks = {"work": "█", "copy": "▓", "wait": "░", "open": "·", "bad": "█"}  # told apart without colour, too
_steps = "▁▂▃▄▅▆▇█"


def cell(words: str, width: int, style: str = "", *, right: bool = False) -> Text:
    """Words in exactly `width` cells of the terminal; what does not fit ends in an ellipsis."""
    shown = Text().append(words, style)  # as a base style it would colour what is appended, too
    shown.truncate(width - 1, overflow="ellipsis")
    shown.align("right" if right else "left", width)
    return shown


def bar(parts: Iterable[tuple[str, float]], width: int) -> Text:
    """Shares of one, by role, as one bar of `width` cells; what is left stays empty."""
    line = Text()
    reached, drawn = 0.0, 0
    for role, share in parts:
        reached += max(share, 0.0)
        until = min(round(reached * width), width)
        line.append(marks[role] * (until - drawn), styles[role])
        drawn = max(drawn, until)
    return line.append(" " * (width - drawn))


def gauge(depth: int, capacity: float | None, width: int) -> Text:
    """A queue: a box for every place where there is room for that, else the same to scale."""
    places = min(int(capacity or depth), width)
    filled = depth if (capacity or depth) <= width else round(depth / (capacity or depth) * places)
    filled = min(max(filled, int(depth > 0)), places)
    line = Text().append("■" * filled, styles["accent"]).append("□" * (places - filled), styles["open"])
    return line.append(" " * (width - places))


def sparkline(values: Sequence[float], width: int) -> str:
    """The last values, or all of them as means of equal groups, in at most `width` cells; 0 is the floor."""
    count = len(values)
    if width < 1 or count == 0:
        return ""
    cells = min(width, count)
    groups = [values[i * count // cells : (i + 1) * count // cells] for i in range(cells)]
    means = [sum(group) / len(group) for group in groups]
    top = max(means)
    if top <= 0:
        return _steps[0] * cells
    return "".join(_steps[round(mean / top * (len(_steps) - 1))] for mean in means)


def join_lines(lines: Iterable[Text]) -> Text:
    """Lines as one text."""
    return Text("\n").join(lines)
