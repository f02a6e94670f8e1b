"""Where a study keeps its trials: what it needs of a store, and the one in memory. On disk: storage.py.

Knows nothing of how trials are chosen or run.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import time_ns
from typing import Protocol

from autotune.trial import Trial


class TrialStore(Protocol):
    """Where trials are kept. What `save` was given is there after a crash, as far as the store can."""

    @property
    def root(self) -> Path:
        """The directory that the trials' run directories lie under (absolute)."""
        ...

    @property
    def trials(self) -> tuple[Trial, ...]:
        """All trials, by number, each in its latest form."""
        ...

    @property
    def next_number(self) -> int:
        """The number of the next trial."""
        ...

    def save(self, trial: Trial) -> None:
        """Add `trial`, or replace its earlier form."""
        ...


class NumberedTrials:
    """Trials that are held by number."""

    def __init__(self, trials: Sequence[Trial] = ()) -> None:
        self._trials = {trial.number: trial for trial in trials}

    @property
    def trials(self) -> tuple[Trial, ...]:
        """All trials, by number."""
        return tuple(self._trials[number] for number in sorted(self._trials))

    @property
    def next_number(self) -> int:
        """The number of the next trial."""
        return max(self._trials, default=-1) + 1


class MemoryStore(NumberedTrials):
    """Trials in memory. Run directories, where a runner makes any, lie under a temporary one."""

    def __init__(self, trials: Sequence[Trial] = ()) -> None:
        super().__init__(trials)
        self._root = Path(tempfile.gettempdir()).resolve() / f"dflash-study-{time_ns()}"

    @property
    def root(self) -> Path:
        """The directory that run directories lie under; it is there when a runner has made one."""
        return self._root

    def save(self, trial: Trial) -> None:
        """Add `trial`, or replace its earlier form."""
        self._trials[trial.number] = trial
