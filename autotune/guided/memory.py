"""Whether a configuration fits into memory: what each place holds, as a share of its limit, with its doubt.

What a place holds is linear in features of its roles (a fixed part, the tokens of a batch, hidden states that
wait), with weights that have priors. Peaks that were seen are readings of it; a run that ran out of memory
says that some place wanted more than there is. Knows nothing of rates.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from autotune.guided.gaussian import square_root

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
misfit: Final = 0.02  # of the limit: what the features do not catch
reading_deviation: Final = 0.01


@dataclass(frozen=True)
class Features:
    """Of [M] configurations with [K] kinds of places each, [M, K, P], and the weights' priors."""

    rows: Floats
    present: NDArray[np.bool_]  # [M, K]: whether a row has a place of that kind
    kinds: tuple[str, ...]
    means: Floats
    deviations: Floats


@dataclass(frozen=True)
class Seen:
    """One run's memory: whether it fitted, and the peaks of its kinds of places as shares of the limit."""

    row: int
    fitted: bool
    peaks: Mapping[str, float]


class MemoryBelief:
    """The weights after what was seen."""

    def __init__(self, features: Features, seen: Sequence[Seen]) -> None:
        self._features = features
        self._mean = features.means.copy()
        self._covariance = np.diag(features.deviations**2)
        for each in seen:
            for kind, peak in each.peaks.items():
                if kind in features.kinds:
                    self._learn(self._row(each.row, kind), peak, (reading_deviation + misfit) ** 2)
        for each in seen:
            self._judge(each)

    def fits(self) -> Floats:
        """The chance that each configuration fits, [M]."""
        from scipy.special import ndtr

        chances: Floats = np.where(self._features.present, ndtr(self._spare()), 1.0).prod(axis=1)
        return chances

    def draw_fits(self, rows: Ints, count: int, generator: np.random.Generator) -> NDArray[np.bool_]:
        """Whether `rows` fit, in `count` draws of the weights, [count, m]."""
        normal = generator.standard_normal((count, len(self._mean)))
        weights = self._mean + normal @ square_root(self._covariance).T
        held = np.einsum("mkp,sp->smk", self._features.rows[rows], weights, optimize=True)
        fitting: NDArray[np.bool_] = ((held < 1.0) | ~self._features.present[rows]).all(axis=2)
        return fitting

    def held(self, row: int) -> dict[str, float]:
        """The expected share of the limit at each kind of place."""
        f = self._features
        return {k: float(f.rows[row, i] @ self._mean) for i, k in enumerate(f.kinds) if f.present[row, i]}

    def _spare(self) -> Floats:
        f = self._features.rows
        mean = f @ self._mean
        variance = np.einsum("mkp,pq,mkq->mk", f, self._covariance, f, optimize=True) + misfit**2
        spare: Floats = (1.0 - mean) / np.sqrt(np.maximum(variance, 1e-12))
        return spare

    def _row(self, row: int, kind: str) -> Floats:
        found: Floats = self._features.rows[row, self._features.kinds.index(kind)]
        return found

    def _learn(self, x: Floats, value: float, variance: float) -> None:
        along = self._covariance @ x
        gain = along / (float(x @ along) + variance)
        self._mean = self._mean + gain * (value - float(x @ self._mean))
        self._covariance = self._covariance - np.outer(gain, along)

    def _judge(self, each: Seen) -> None:
        """Learn from the bare fact that it fitted, or from that it did not."""
        f = self._features
        here = [kind for i, kind in enumerate(f.kinds) if f.present[each.row, i]]
        kinds = [kind for kind in here if not each.fitted or kind not in each.peaks]
        if not kinds:
            return
        if not each.fitted:  # some place wanted too much: most likely the fullest
            kinds = [max(kinds, key=lambda kind: self._want(self._row(each.row, kind)))]
        for kind in kinds:
            self._truncate(self._row(each.row, kind), below=each.fitted)

    def _want(self, x: Floats) -> float:
        return (float(x @ self._mean) - 1.0) / math.sqrt(float(x @ self._covariance @ x) + misfit**2)

    def _truncate(self, x: Floats, *, below: bool) -> None:
        """Match the moments of the weights with x·w + misfit kept to one side of the limit."""
        from scipy.special import ndtr

        along = self._covariance @ x
        variance = float(x @ along) + misfit**2
        sign = 1.0 if below else -1.0
        z = sign * (1.0 - float(x @ self._mean)) / math.sqrt(variance)
        # The ratio of density to chance, by its expansion where the chance is too small to divide by.
        ratio = math.exp(-0.5 * z * z) / math.sqrt(2 * math.pi) / float(ndtr(z)) if z > -6 else -z + 1.0 / -z
        self._mean = self._mean - sign * along / math.sqrt(variance) * ratio
        self._covariance = self._covariance - np.outer(along, along) / variance * ratio * (ratio + z)
