"""How long the whole training takes at a given speed: the tokens of the data, times the epochs.

Knows nothing of how speeds were measured.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from dflash.contract.errors import RunError
from dflash.contract.rundir import RunDir

_day_s = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingLength:
    """What is to be trained."""

    epochs: int | None
    epoch_tokens: int | None  # of all documents
    reason: str | None = None  # why it is not known

    def days(self, tokens_per_s: float | None) -> float | None:
        """Days for all epochs at that speed; None where one of the figures is not known."""
        if self.epochs is None or self.epoch_tokens is None or not tokens_per_s:
            return None
        return self.epoch_tokens * self.epochs / tokens_per_s / _day_s


def read_length(epochs: int | None, run_paths: Iterable[Path]) -> TrainingLength:
    """The length as the first run says that knows the data; run.json alone is read."""
    if epochs is None:
        return TrainingLength(epochs=None, epoch_tokens=None, reason="no training configuration is behind it")
    for path in run_paths:
        tokens = _data_tokens(path)
        if tokens is not None:
            return TrainingLength(epochs=epochs, epoch_tokens=tokens)
    return TrainingLength(epochs=epochs, epoch_tokens=None, reason="no run says how many tokens the data has")


def _data_tokens(run_path: Path) -> int | None:
    try:
        plan = RunDir(run_path).manifest().get("memory_plan")
    except RunError:  # never started, or not there any more
        return None
    facts = plan.get("facts") if isinstance(plan, dict) else None
    tokens = facts.get("data_tokens") if isinstance(facts, dict) else None
    return tokens if isinstance(tokens, int) and tokens > 0 else None
