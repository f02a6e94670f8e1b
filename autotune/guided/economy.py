"""What a run costs besides its training: little where its split is loaded, a start of the process elsewhere.

Both are what the trials so far have shown. Knows nothing of what is worth measuring.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from autotune.guided.table import Table
from autotune.telemetry import FailureKind
from autotune.trial import Trial
from dflash.contract.held_knobs import is_held

Floats = NDArray[np.float64]
nearly_as_good: Final = 0.5  # of the largest worth, from which on the price decides
dearest_pair: Final = 3.0  # runs that two configurations in turn may take the time of


@dataclass(frozen=True)
class Economy:
    """After a history. `loaded` [M]: rows for which nothing has to be loaded anew."""

    loaded: NDArray[np.bool_]
    run_s: float  # of a run in a process that is loaded
    start_s: float  # what another process adds; 0 where that is not known, or there are none
    pair_s: float  # of two configurations in turn; 0 where that is not known

    @classmethod
    def of(cls, table: Table, trials: Sequence[Trial]) -> Economy:
        """From trials in the order of their numbers."""
        knobs = [knob for knob, axis in enumerate(table.axes) if is_held(axis.path)]
        paths = [table.axes[knob].path for knob in knobs]
        cold: list[float] = []
        warm: list[float] = []
        pairs: list[float] = []
        before: list[Any] | None = None
        for trial in trials:
            held = [trial.values.get(path) for path in paths]
            if trial.measurement is not None and trial.spent_s is not None:
                if trial.measurement.beside is None:
                    (warm if held == before else cold).append(max(trial.spent_s - trial.seconds, 0.0))
                elif held == before:
                    pairs.append(trial.spent_s)
            before = held if _stays(trial) else None
        around_s = median(warm) if warm else 0.0
        seconds = trials[-1].seconds if trials else 0.0
        return cls(
            loaded=_alike(table, knobs, before),
            run_s=seconds + around_s,
            start_s=max(median(cold) - around_s, 0.0) if cold else 0.0,
            pair_s=median(pairs) if pairs else 0.0,
        )

    def is_near(self, row: int) -> bool:
        """Whether a run of the row needs no start."""
        return self.start_s <= 0.0 or bool(self.loaded[row])

    @property
    def pairs_pay(self) -> bool:
        """Whether two in turn take little enough: turns need a number of windows, and each a warm-up."""
        return self.pair_s <= dearest_pair * self.run_s

    def choose(self, worth: Floats) -> int:
        """The row of the largest worth a second, among those that are worth nearly as much as the best."""
        prices_s = np.where(self.loaded, self.run_s, self.run_s + self.start_s)
        close = worth >= nearly_as_good * worth.max()
        return int(np.argmax(np.where(close, worth / np.maximum(prices_s, 1e-9), -1.0)))


def _stays(trial: Trial) -> bool:
    """Whether the trial's process is there for the next one."""
    return not trial.fresh and trial.failure in (None, FailureKind.refused)


def _alike(table: Table, knobs: Sequence[int], held: Sequence[Any] | None) -> NDArray[np.bool_]:
    if held is None:
        return np.zeros(len(table), dtype=bool)
    found = np.ones(len(table), dtype=bool)
    for knob, value in zip(knobs, held, strict=True):
        found &= table.codes[:, knob] == table.axes[knob].choices.index(value)
    return found
