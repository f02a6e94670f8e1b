"""Two configurations in turn in one process, theirs first: A B B A. What differs is then the configuration.

A machine that drifts steadily weighs on both alike, and what a process has of its own (where its memory lies,
what it compiled) is the same for both. Pure functions; knows nothing of processes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

order: Final = ("theirs", "ours", "ours", "theirs")
z_90 = 1.6449  # of the normal distribution: half of a 90 % interval in standard errors


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """What one turn came to, its settling excluded."""

    tokens_per_s: float
    low: float  # 90 % interval within it
    high: float
    windows: int = 0

    @property
    def log_rate(self) -> float:
        return math.log(self.tokens_per_s)

    @property
    def deviation(self) -> float:
        """Standard error of `log_rate` by the windows of the segment."""
        return math.log(self.high / self.low) / (2 * z_90)


def compare(segments: Sequence[Segment]) -> tuple[float, float]:
    """log(ours / theirs) of segments A B B A, and its standard error.

    The error is the larger of what windows scatter by and of what turns of one configuration differ by beyond
    a steady drift: with four equally long turns that is (a2 - a1) - 3 (b2 - b1), whose variance is 20 times
    that of a turn.
    """
    a1, b1, b2, a2 = (segment.log_rate for segment in segments)
    within = math.sqrt(sum(segment.deviation**2 for segment in segments)) / 2
    between = abs((a2 - a1) - 3 * (b2 - b1)) / math.sqrt(20)
    return (b1 + b2 - a1 - a2) / 2, max(within, between)


def join(segments: Sequence[Segment]) -> Segment:
    """All turns of one configuration as one measurement."""
    count = len(segments)
    mid = sum(segment.log_rate for segment in segments) / count
    within = math.sqrt(sum(segment.deviation**2 for segment in segments)) / count
    rates = [segment.log_rate for segment in segments]
    deviation = max(within, (max(rates) - min(rates)) / 2 / math.sqrt(max(count - 1, 1)))
    return Segment(
        tokens_per_s=math.exp(mid),
        low=math.exp(mid - z_90 * deviation),
        high=math.exp(mid + z_90 * deviation),
        windows=sum(segment.windows for segment in segments),
    )
