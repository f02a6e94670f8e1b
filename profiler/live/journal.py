"""The last things that happened in a run, in words: windows, checkpoints, warnings, starts and ends.

Knows nothing of stages or queues.
"""

from __future__ import annotations

import json
import math
from typing import Any

from profiler.live.follower import Recent
from profiler.live.view import JournalRow

rows_shown = 12
windows_shown = 3  # of them: windows end all the time


def read_journal(recent: Recent) -> tuple[JournalRow, ...]:
    """Newest last."""
    start_ns = recent.run.start_ns
    rows = [_note(row, start_ns) for row in recent.notes.tail(rows_shown).to_dict("records")]
    rows += [_window(row, start_ns) for row in recent.windows.tail(windows_shown).to_dict("records")]
    return tuple(sorted(rows, key=lambda row: row.at_s)[-rows_shown:])


def _note(row: dict[Any, Any], start_ns: int) -> JournalRow:
    who = str(row["stage"]) if row["stage"] == "trainer" else f"{row['stage']} {row['index']}"
    text = str(row["note"]) if row["note"] else f"{who}: {row['name']}"
    at_ns = row["t_ns"]
    if row["kind"] == "span":
        at_ns += row["dur_ns"]
        text += f" took {row['dur_ns'] / 1e9:.1f} s"
    return JournalRow((at_ns - start_ns) / 1e9, str(row["name"]), text)


def _window(row: dict[Any, Any], start_ns: int) -> JournalRow:
    words = [f"step {row['window'] + 1:.0f}" if math.isfinite(row["window"]) else "a step"]
    if math.isfinite(row["tokens"]):
        words.append(f"{row['tokens']:,.0f} tokens")
    words += _losses(row["note"])
    return JournalRow((row["t_ns"] - start_ns) / 1e9, "window", ", ".join(words))


def _losses(note: str | None) -> list[str]:
    try:
        told = json.loads(note or "{}")
    except ValueError:
        return []
    found = [(name, told.get(name)) for name in ("loss", "accuracy")] if isinstance(told, dict) else []
    return [f"{name} {value:.3f}" for name, value in found if isinstance(value, int | float)]
