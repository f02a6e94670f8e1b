"""Markdown for issue trackers: names from runs as plain text, tables, fenced blocks.

What comes from a run is escaped: no markup, no table cell torn open, no person or issue called by accident.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from dflash.contract.rundir import printable

_markup: Final = re.compile(r"([\\`*_{}\[\]<>|~])")
_callers: Final = re.compile(r"([@#])(?=\w)")  # names and numbers of issues
_line_start: Final = re.compile(r"^([-+=#])")


def escape(words: object) -> str:
    """`words` as plain Markdown text on one line."""
    line = " ".join(printable(str(words)).split())
    line = _markup.sub(r"\\\1", line)
    line = _callers.sub("\\1\u200b", line)  # a space that is not seen keeps a tracker from linking
    return _line_start.sub(r"\\\1", line)


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose cells are escaped."""
    lines = [header, ["---"] * len(header), *([escape(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def fenced(body: str, language: str) -> str:
    """`body` as it is, in a fence that nothing in it can close."""
    longest = max((len(run) for run in re.findall(r"`+", body)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{body}\n{fence}"


def folded(summary: str, body: str) -> str:
    """A part that a reader opens."""
    return f"<details><summary>{summary}</summary>\n\n{body}\n\n</details>"
