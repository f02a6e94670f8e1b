"""How well the search knew what it would measure: predictions made before a trial against the trial.

Every prediction was made without the trial it is held against, so errors here are those of leaving one out,
in the order of trying. Runs of a configuration that had run before are counted apart: there the searcher had
seen the answer. Knows nothing of how predictions are made.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from autotune.comparison import Interval, normal_quantile
from autotune.telemetry import FailureKind
from autotune.trial import Prediction, Trial

likely: Final = 0.5  # from this chance on a configuration was expected to fit


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedTrial:
    """A trial beside what was expected of it."""

    number: int
    predicted: Prediction
    tokens_per_s: float | None  # measured; None: it gave no figure that may be compared
    again: bool  # its configuration had run before
    out_of_memory: bool

    @property
    def error(self) -> float | None:
        """Measured ÷ predicted − 1."""
        return None if self.tokens_per_s is None else self.tokens_per_s / self.predicted.tokens_per_s - 1

    @property
    def is_inside(self) -> bool | None:
        """Whether the figure lies in its interval; None where one of them is missing."""
        low, high = self.predicted.low, self.predicted.high
        if self.tokens_per_s is None or low is None or high is None:
            return None
        return low <= self.tokens_per_s <= high


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionRecord:
    """All predicted trials that are over, and what they amount to. Errors and coverage: first runs only."""

    trials: tuple[PredictedTrial, ...]
    median_error: float | None  # of |measured ÷ predicted − 1|
    worst_error: float | None
    inside: int  # of `judged` figures, within the 90 % interval
    judged: int
    coverage: Interval | None  # the share inside, with the 90 % interval that so few figures leave
    out_of_memory: int  # of `fits_judged` trials of which a chance to fit was told
    out_of_memory_expected: float  # the sum of the chances told
    fits_judged: int
    reason: str | None = None  # why there is nothing to say


def judge_predictions(trials: Sequence[Trial]) -> PredictionRecord:
    """The record of all `trials` that are over and were predicted."""
    rows = tuple(_pair(trial) for trial in trials if trial.predicted is not None and trial.state.is_over)
    first = [row for row in rows if not row.again]
    errors = [abs(row.error) for row in first if row.error is not None]
    held = [row.is_inside for row in first if row.is_inside is not None]
    fits = [row for row in first if row.predicted.fits is not None]
    return PredictionRecord(
        trials=rows,
        median_error=median(errors) if errors else None,
        worst_error=max(errors, default=None),
        inside=sum(held),
        judged=len(held),
        coverage=_share(sum(held), len(held)),
        out_of_memory=sum(row.out_of_memory for row in fits),
        out_of_memory_expected=sum(1 - (row.predicted.fits or 0.0) for row in fits),
        fits_judged=len(fits),
        reason=None if rows else "no trial was predicted before it ran",
    )


def _pair(trial: Trial) -> PredictedTrial:
    assert trial.predicted is not None
    return PredictedTrial(
        number=trial.number,
        predicted=trial.predicted,
        tokens_per_s=trial.tokens_per_s if trial.is_candidate else None,
        again=trial.repeat_of is not None,
        out_of_memory=trial.failure is FailureKind.out_of_memory,
    )


def _share(count: int, total: int) -> Interval | None:
    """Wilson's interval of a share."""
    if not total:
        return None
    z, share = normal_quantile, count / total
    scale = 1 + z**2 / total
    middle = (share + z**2 / (2 * total)) / scale
    reach = z * math.sqrt(share * (1 - share) / total + z**2 / (4 * total**2)) / scale
    return Interval(share, max(0.0, middle - reach), min(1.0, middle + reach))
