"""Adds up rows of forecasts beside what was measured: errors, intervals that held, fixes put first.

A row: predicted, low, high, measured (None with an `error_text`), tokens/s. Knows nothing of runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

Row = Mapping[str, Any]
median_goal: Final = 0.05
p90_goal: Final = 0.10


def judge(row: Row) -> dict[str, Any]:
    """What a row says of its forecast; nothing where nothing was measured."""
    truth = row["measured"]
    if not truth:
        return {"error": None, "covered": None}
    return {
        "error": row["predicted"] / truth - 1.0,
        "covered": row["low"] <= truth <= row["high"],
    }


def score(rows: Sequence[Row], repeats: Sequence[float] = ()) -> dict[str, Any]:
    """The figures of a page. `repeats`: rates of one and the same configuration, for what noise there is."""
    errors = [abs(row["error"]) for row in rows if row["error"] is not None]
    noise = repeat_noise(repeats)
    if not errors:
        return {"settings": len(rows), "measured": 0, "repeat_noise": noise}
    median, p90 = float(np.median(errors)), float(np.quantile(errors, 0.9))
    return {
        "settings": len(rows),
        "measured": len(errors),
        "median_error": median,
        "p90_error": p90,
        "largest_error": max(errors),
        "repeat_noise": noise,
        "median_is_good": median <= max(median_goal, noise or 0.0),
        "p90_is_good": p90 <= p90_goal,
        "covered": sum(bool(row["covered"]) for row in rows),
        "covered_share": float(np.mean([row["covered"] for row in rows if row["covered"] is not None])),
    }


def repeat_noise(rates: Sequence[float]) -> float | None:
    """Half of the range of repeats, relative to their mean; None with fewer than two."""
    if len(rates) < 2:
        return None
    return (max(rates) - min(rates)) / 2 / (sum(rates) / len(rates))
