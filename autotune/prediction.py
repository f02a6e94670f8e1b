"""What a searcher expected of a configuration before it was run; kept with the trial, to be judged by it.

Knows nothing of how it was made.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Made without the trial that it stands beside. Rates in tokens per second."""

    tokens_per_s: float | None  # if it fits into memory; None: nothing was known yet
    low: float | None = None  # 90 % interval of what the run would show, its own noise included
    high: float | None = None
    fits: float | None = None  # chance that it fits into memory, 0..1; None: not judged
