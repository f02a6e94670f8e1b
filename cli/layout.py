"""Plain text in shape: labelled facts and tables, for terminals, pipes and files alike."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from textwrap import indent


def facts(rows: Iterable[tuple[str, str]]) -> str:
    """`label   text` lines; further lines of a text align under its first."""
    rows = list(rows)
    width = max((len(label) for label, _ in rows), default=0) + 2
    return "\n".join(label.ljust(width) + indent(body, " " * width).lstrip(" ") for label, body in rows)


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns as wide as their widest cell, two spaces apart."""
    lines = [list(heads), *map(list, rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(heads))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def plain(text: str) -> str:
    """`text` with ordinary spaces where numbers were glued to their units, so that it can be searched."""
    return text.replace("\u00a0", " ")
