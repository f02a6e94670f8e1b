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
equal_share: Final = 0.02  # two rates that lie no further apart count as equal


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


def judge_ranking(base: str, rows: Sequence[Row], now: float | None = None) -> dict[str, Any] | None:
    """Whether the setting with the best forecast is the best measured one; None with fewer than two measured.

    `now`: the base's own rate; where no setting gains, nothing is there to be first.
    """
    known = [row for row in rows if row["measured"]]
    if len(known) < 2:
        return None
    first = max(known, key=lambda row: float(row["predicted"]))
    best = max(known, key=lambda row: float(row["measured"]))
    return {
        "base": base,
        "first": first["setting"],
        "best": best["setting"],
        "settings": len(known),
        "behind": 1.0 - first["measured"] / best["measured"],
        "best_gain": None if now is None else best["measured"] / now - 1.0,
    }


def score_rankings(rankings: Sequence[Row]) -> dict[str, Any]:
    """How often the first-ranked was the best, or no further behind than runs of one setting lie apart."""
    if not rankings:
        return {"rankings": 0}
    behind = np.array([ranking["behind"] for ranking in rankings])
    return {
        "rankings": len(rankings),
        "best": int((behind <= 0).sum()),
        "best_or_equal": int((behind <= equal_share).sum()),
        "best_or_equal_share": float((behind <= equal_share).mean()),
        "equal_within": equal_share,
        "largest_behind": float(behind.max()),
    }
