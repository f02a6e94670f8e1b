"""The pace of injected runs: logical devices that take their own time, not the CPU's.

A real forward or step is stretched by sleeping to what its tokens take at a declared speed, so that what a
fault costs does not hang on how crowded the machine is. Knows nothing of faults.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

target_tokens_per_s: Final = 3200.0  # one target
drafter_tokens_per_s: Final = 12800.0  # one drafter


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds a token of each stage in a healthy run, whose targets are the limit."""

    targets: int
    drafters: int

    @property
    def forward_s(self) -> float:
        """Of one target's forward."""
        return 1 / target_tokens_per_s

    @property
    def step_s(self) -> float:
        """Of one drafter's forward and backward."""
        return 1 / drafter_tokens_per_s

    @property
    def interval_s(self) -> float:
        """Of the whole pipeline: all targets work side by side."""
        return self.forward_s / self.targets

    def forward_loss_s(self, lost: float) -> float:
        """What added to every target's forward takes the share `lost` of the throughput."""
        return self.forward_s * lost / (1 - lost)

    def slow_step_s(self, lost: float) -> float:
        """What a drafter has to take to be the limit, at the share `lost` below the targets' pace."""
        return self.interval_s * self.drafters / (1 - lost)

    def straggling(self, lost: float) -> float:
        """By how much one target must be slower to take the share `lost` from all of them."""
        return 1 / (1 - lost * self.targets)
