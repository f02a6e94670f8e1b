"""What a run's hardware would allow, as values: the limit, what it is made of, how near each stage comes.

Knows nothing of how it is worked out, nor of how it is shown.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from dflash.contract.ceilings import DeviceCeilings

Stage = Literal["target", "drafter"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMark:
    """How near a stage's kernels come to the ceiling of matrix products. Shares are 0 to 1."""

    stage: Stage
    gpus: int
    per_token: float  # operations
    tflops: float | None  # of all its GPUs, while it works
    working_share: float | None  # of their ceiling, while it works
    whole_share: float | None  # over all the time
    reason: str | None = None  # why something of it is unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTimes:
    """Seconds at the ceilings, on one GPU."""

    target_s: float  # a token
    drafter_s: float
    carry_s: float  # a token's states, at the slower end
    step_s: float  # a window

    def apart(self, targets: int, drafters: int, window: float) -> float:
        """Tokens a second with the roles on GPUs of their own; `window`: its tokens."""
        send_s = max(self.target_s, self.carry_s) / targets
        train_s = max(self.drafter_s, self.carry_s) / drafters
        return window / max(window * send_s, window * train_s + self.step_s)

    def together(self, gpus: int, window: float) -> float:
        """Tokens a second where all GPUs have both roles, and nothing is carried."""
        shared_s = (window * (self.target_s + self.drafter_s) + self.step_s) / gpus
        return window / max(shared_s, window * self.drafter_s / gpus + self.step_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """What the hardware allows. Rates in tokens/s; None with the reason where it is not known.

    Raises ValueError for one that is not finite, or unknown without a reason.
    """

    as_split: float | None = None  # with the split in question
    tokens_per_s: float | None = None  # with the best one
    split: str | None = None  # the best one; None: the one in question
    gpus: int | None = None  # that the best split has
    ceilings: DeviceCeilings | None = None  # of each GPU
    times: StageTimes | None = None  # what the rates are made of
    marks: tuple[StageMark, ...] = ()
    notes: tuple[str, ...] = ()
    reason: str | None = None

    def __post_init__(self) -> None:
        if (self.as_split is None or self.tokens_per_s is None) and not self.reason:
            raise ValueError("the limit is unknown without a reason")
        if not all(math.isfinite(rate or 0.0) for rate in (self.as_split, self.tokens_per_s)):
            raise ValueError("the limit is not a finite number")
