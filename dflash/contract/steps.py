"""A range of optimizer steps as people write it: `100:105`. Knows nothing of training."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from dflash.contract.errors import UsageError


@dataclass(frozen=True, slots=True)
class StepRange:
    """Optimizer steps `first` to `last`, both included, counted from 0 as `window` is in events."""

    first: int
    last: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """`100:105`, or `100` for one step. Raises UsageError."""
        match = re.fullmatch(r"(\d{1,12})(?::(\d{1,12}))?", text.strip(), re.ASCII)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, -1)
        if last < first:
            raise UsageError(
                "not a range of optimizer steps",
                where="--trace",
                found=text,
                expected="FIRST:LAST, both included, counted from 0, such as 100:105",
            )
        return cls(first, last)

    def __str__(self) -> str:
        return f"{self.first}:{self.last}"

    def check_within(self, first_step: int, total_steps: int) -> None:
        """Raise UsageError unless a run of the steps [first_step, total_steps) takes all of these."""
        if self.first < first_step or self.last >= total_steps:
            raise UsageError(
                "the steps to trace are not all steps of this run",
                where=f"--trace {self}",
                found=f"steps {self.first} to {self.last}",
                expected=f"steps within {first_step} to {total_steps - 1}",
                remedy="choose steps of this run, or raise run.max_steps or run.epochs",
            )
