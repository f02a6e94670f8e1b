"""Closing sums of threads, as chart and as table. They add up to the whole, so nothing can hide.

Knows nothing of how time was measured.
"""

from __future__ import annotations

from typing import Any, Final

from profiler.finding import ClosingSum
from reports import text
from reports.charts import ThreadSum, draw_closing_sums
from reports.page import Chart
from reports.run_map import roles

_kind_order: Final = ("work", "gpu_wait", "copy", "gil_wait", "wait", "unaccounted")


def _kinds(sums: tuple[ClosingSum, ...]) -> dict[str, str]:
    """Every part that occurs, with its role, in drawing order."""
    found = {
        (_kind_order.index(part.kind), _part_name(part.kind, part.name)) for s in sums for part in s.parts
    }
    return {name: roles[_kind_order[order]] for order, name in sorted(found)}


def _part_name(kind: str, name: str) -> str:
    if kind == "unaccounted":
        return "not accounted for"
    if kind == "gpu_wait":
        return "waits for its own GPU"
    if kind == "gil_wait":
        return "waits for the GIL"
    words = {"get": "waits for input", "put": "waits for room"}
    first, _, where = name.partition(" ")
    if kind == "wait":
        return f"{words.get(first, f'waits: {first}')}{f' ({where})' if where else ''}"
    return name


def _thread_name(closing: ClosingSum) -> str:
    name = closing.stage if closing.stage == "prefetch" else f"{closing.stage} {closing.index}"
    return f"{name} · {closing.device}"


def _thread_parts(closing: ClosingSum) -> dict[str, float]:
    parts: dict[str, float] = {}
    for part in closing.parts:
        name = _part_name(part.kind, part.name)
        parts[name] = parts.get(name, 0.0) + part.seconds
    return parts


def draw_threads(sums: tuple[ClosingSum, ...]) -> Chart:
    """A stacked bar for each thread."""
    threads = [ThreadSum(name=_thread_name(s), parts_s=_thread_parts(s)) for s in sums]
    return draw_closing_sums(threads, _kinds(sums))


def tabulate(sums: tuple[ClosingSum, ...]) -> dict[str, Any]:
    """The same sums as rows of text: share and seconds of each kind, and what they add up to."""
    kinds = list(_kinds(sums))
    rows = []
    for closing in sums:
        parts = _thread_parts(closing)
        total = sum(parts.values())
        cells = [
            f"{text.share(parts[k] / total)}, {text.duration(parts[k])}" if parts.get(k) and total else "–"
            for k in kinds
        ]
        whole = f"{text.share(total / closing.range_s)}, {text.duration(total)}" if closing.range_s else ""
        rows.append({"name": _thread_name(closing), "cells": cells, "total": whole})
    return {"kinds": kinds, "rows": rows}
