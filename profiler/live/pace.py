"""Tokens per second now, from the ends of windows. Knows nothing of stages."""

from __future__ import annotations

import json
import math
from typing import Any

import pandas as pd

from profiler.live.follower import Recent
from profiler.live.view import Number, Pace
from profiler.steady import find_steady_range, min_windows, read_windows
from profiler.throughput import throughput_of


def measure_pace(recent: Recent, now_ns: int) -> Pace:
    """The pace over the recent range; `now_ns` on the run's clock."""
    windows, set_aside = read_windows(recent.windows)
    since_ns = recent.since_ns or 0
    mine = windows[windows["start_ns"] >= since_ns].reset_index(drop=True)
    measured = throughput_of(mine, find_steady_range(mine, set_aside))
    rate = measured.tokens_per_s
    if rate is None and len(mine):
        rate = float(mine["tokens"].sum() / mine["seconds"].sum())
    note = _last_note(recent.windows)
    step = recent.windows["window"].iloc[-1] if len(recent.windows) else math.nan
    return Pace(
        tokens_per_s=Number(rate, None if rate is not None else _why_no_rate(recent)),
        low=measured.low,
        high=measured.high,
        interval_reason=None
        if measured.low is not None
        else f"{len(mine)} of {min_windows} windows, so no interval yet",
        windows=len(mine),
        step=int(step) + 1 if math.isfinite(step) else None,
        steps_planned=_positive(recent.run.config_values.get("run.max_steps")),
        loss=_number(note, "loss"),
        accuracy=_number(note, "accuracy"),
        window_s=float(mine["seconds"].median()) if len(mine) else None,
        last_window_s=max(0.0, (now_ns - int(recent.windows["t_ns"].iloc[-1])) / 1e9)
        if len(recent.windows)
        else None,
        series=tuple(
            ((end_ns - recent.run.start_ns) / 1e9, tokens / seconds)
            for end_ns, tokens, seconds in windows[["end_ns", "tokens", "seconds"]].itertuples(index=False)
        ),
    )


def _why_no_rate(recent: Recent) -> str:
    if not len(recent.windows):
        return "no window has ended yet"
    return "one window has ended; a rate needs two" if len(recent.windows) == 1 else "no whole window lately"


def _last_note(windows: pd.DataFrame) -> dict[str, Any]:
    try:
        told = json.loads(windows["note"].iloc[-1] or "{}") if len(windows) else {}
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}


def _number(note: dict[str, Any], key: str) -> float | None:
    value = note.get(key)
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _positive(value: object) -> int | None:
    return value if isinstance(value, int) and value > 0 else None
