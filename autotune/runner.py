"""How a trial is run: the trainer as a child of the recorder, then measured and diagnosed.

`Runner` is the seam between a search and the machine: tests put a function there. Knows nothing of
which configuration comes next.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from autotune.trial import FailureKind, Measurement
from dflash.contract.config import TrainConfig


@dataclass(frozen=True, slots=True)
class Failed:
    """A run that could not be measured."""

    kind: FailureKind
    reason: str  # one line, for people


Outcome = Measurement | Failed


class Runner(Protocol):
    """Runs configurations, one at a time."""

    def run(self, config: TrainConfig, run_path: Path) -> Outcome:
        """Run `config` once, with `run_path` (absolute, not there yet) as its run directory.

        A failure of the trial is an outcome, not an exception. On KeyboardInterrupt the run is ended
        before the exception is passed on. When it returns, nothing of the trial runs any more.
        """
