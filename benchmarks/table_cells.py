"""Values as the cells of a Markdown table. Knows no benchmark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

nothing = "n/a"


def table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A Markdown table; empty without rows."""
    if not rows:
        return ""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(cell(value) for value in row) + " |" for row in rows]
    return "\n".join(lines)


def cell(value: Any) -> str:
    """One value: numbers with three or four digits that count, a summary as median and range."""
    if value is None:
        return nothing
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return number(value)
    if isinstance(value, dict):
        return spread(value) if "median" in value else nothing
    if isinstance(value, list | tuple):
        return ", ".join(cell(item) for item in value) or "none"
    return str(value).replace("|", "\\|").replace("\n", " ")


def number(value: float) -> str:
    """Short, without an exponent where people would not write one."""
    size = abs(value)
    if size >= 1000:
        return f"{value:,.0f}"
    if size >= 100 or value == 0:
        return f"{value:.0f}"
    if size >= 1:
        return f"{value:.3g}"
    return f"{value:.2g}" if size >= 1e-3 else f"{value:.1e}"


def spread(value: dict[str, Any]) -> str:
    """`median (smallest to largest)`, the range where it is known."""
    median = cell(value["median"])
    if "smallest" in value and "largest" in value:
        return f"{median} ({cell(value['smallest'])} to {cell(value['largest'])})"
    return median


def percent(share: float | None, digits: int = 1) -> str | None:
    """A share as text."""
    return None if share is None else f"{100 * share:.{digits}f} %"
