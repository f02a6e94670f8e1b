"""What the search's own model thinks of configurations, measured or not, after all trials of a study.

The posterior of the guided search (autotune/guided): physics where the space tells it, a process on the rest,
every rate and every ratio within one run. Knows nothing of what is asked of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from autotune.guided.model import Frame, Model, Parts
from autotune.space import Space
from autotune.telemetry import Values
from autotune.trial import Trial

Array = NDArray[np.float64]


class Opinion:
    """Of the configurations of `space`, after `trials`."""

    def __init__(self, space: Space, trials: Sequence[Trial]) -> None:
        self._frame, self._trials = Frame.of(space), tuple(trials)
        self._rates = Model(self._frame, self._trials, Parts()).rates

    @property
    def noise(self) -> float:
        """Standard deviation of the logarithm of tokens/s from run to run."""
        return float(self._rates.noise)

    @property
    def has_physics(self) -> bool:
        """Whether it knows the pipeline behind configurations, so that a run tells of more than its total."""
        return self._frame.settings is not None

    def knows(self, values: Values) -> bool:
        """Whether the configuration is one of the space that can run."""
        return self._frame.table.row(values) is not None

    def at(self, points: Sequence[Values]) -> tuple[Array, Array]:
        """Mean and covariance of log tokens/s at `points`, all of them known, without the noise of a run."""
        rows = np.array([self._frame.table.row(values) for values in points], dtype=np.int64)
        return self._rates.mean[rows], self._rates.covariance(rows, rows)

    def leave_out(self, values: Values) -> tuple[float, float] | None:
        """What it would think without the runs of this configuration; None where no other was measured."""
        row = self._frame.table.row(values)
        kept = [trial for trial in self._trials if self._frame.table.row(trial.values) != row]
        if row is None or not any(trial.is_candidate for trial in kept):
            return None
        rates = Model(self._frame, kept, Parts()).rates
        return float(rates.mean[row]), math.sqrt(float(rates.variance[row]))
