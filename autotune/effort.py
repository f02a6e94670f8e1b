"""How much a search may spend. Everything counts over all invocations on the same study.

Knows nothing of how it is spent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dflash.contract.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much is spent. `trials` counts configurations; what is run again comes on top."""

    trials: int = 8
    repeats: int = 2  # further runs of each contender, in mirrored order
    seconds: float = 12.0  # of training in a trial
    tolerance: float = 0.02  # a gain below this share is not worth a change
    minutes: float | None = None  # of wall time in trials; None: no limit
    gpu_hours: float | None = None  # of all GPUs there, busy or not; None: no limit

    def __post_init__(self) -> None:
        bounds = {
            "trials": (self.trials >= 1, "1 or more"),
            "repeats": (self.repeats >= 0, "0 or more"),
            "seconds": (_is_positive(self.seconds), "above 0"),
            "tolerance": (0 <= self.tolerance < 1, "0 or more, below 1"),
            "minutes": (self.minutes is None or _is_positive(self.minutes), "above 0"),
            "gpu_hours": (self.gpu_hours is None or _is_positive(self.gpu_hours), "above 0"),
        }
        for name, (is_right, expected) in bounds.items():
            if not is_right:
                found = getattr(self, name)
                raise UsageError(f"{name} = {found} is no effort", where=name, found=found, expected=expected)

    def check_countable(self, gpus: int) -> None:
        """Raises UsageError where GPU-hours are a limit and there are no GPUs."""
        if self.gpu_hours is not None and gpus < 1:
            raise UsageError(
                "GPU-hours cannot be counted without GPUs", where="gpu_hours", expected="minutes"
            )


def _is_positive(number: float) -> bool:
    return math.isfinite(number) and number > 0
