"""Whether a configuration fits into memory: what each place holds, as a share of its limit, with its doubt.

What a place holds is linear in features of its roles (a fixed part, the tokens of a batch, hidden states that
wait), with weights that have priors. Peaks that were seen are readings of it; a run that ran out of memory
says that some place wanted more than there is. Knows nothing of rates.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from autotune.guided.gaussian import square_root

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
misfits: Final = {0.005: -0.5, 0.01: 0.0, 0.02: 0.0, 0.035: -1.0}  # of the limit: what features do not catch
reading_deviation: Final = 0.006  # of a peak from run to run
plan_deviation: Final = 0.1  # of planned to real memory, before any run
plan_scatter: Final = 0.02  # the same between configurations, once the factor is known


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
    """One run's memory: whether it fitted, and of its kinds of places peaks and plans as shares of the limit.

    Peaks of a run that ran out of memory are what was held by then: the least that it needs.
    """

    row: int
    fitted: bool
    peaks: Mapping[str, float]
    planned: Mapping[str, float] = field(default_factory=dict)


class MemoryBelief:
    """The weights after what was seen."""

    def __init__(self, features: Features, seen: Sequence[Seen]) -> None:
        self._features = features
        self._mean, self._covariance = features.means.copy(), np.diag(features.deviations**2)
        told = [
            (self._row(each.row, kind), peak, reading_deviation)
            for each in seen
            for kind, peak in each.peaks.items()
            if each.fitted and kind in features.kinds
        ]
        told += [
            (self._row(each.row, kind), *_corrected(planned, kind, seen))
            for each in seen
            for kind, planned in each.planned.items()
            if not each.fitted and kind in features.kinds
        ]
        self._misfit = self._weigh(told)
        for x, value, deviation in told:
            self._learn(x, value, deviation**2 + self._misfit**2)
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
        variance = np.einsum("mkp,pq,mkq->mk", f, self._covariance, f, optimize=True) + self._misfit**2
        found: Floats = (1.0 - mean) / np.sqrt(np.maximum(variance, 1e-12))
        return found

    def _row(self, row: int, kind: str) -> Floats:
        found: Floats = self._features.rows[row, self._features.kinds.index(kind)]
        return found

    def _weigh(self, told: Sequence[tuple[Floats, float, float]]) -> float:
        """How far off features are: the root of the mean square of what the readings allow."""
        if not told:
            return max(misfits)
        rows, values = np.stack([x for x, _, _ in told]), np.array([value for _, value, _ in told])
        own = np.array([deviation for _, _, deviation in told]) ** 2
        off, known = values - rows @ self._mean, rows @ self._covariance @ rows.T
        likely = np.array(list(misfits.values()))
        for i, each in enumerate(misfits):
            root = np.linalg.cholesky(known + np.diag(own + each**2))
            white = np.linalg.solve(root, off)
            likely[i] -= 0.5 * float(white @ white) + float(np.log(np.diag(root)).sum())
        chances = np.exp(likely - likely.max())
        return math.sqrt(float(chances @ np.array(list(misfits)) ** 2 / chances.sum()))

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
        if not each.fitted:
            for kind in kinds:  # what was held by then is the least that is needed
                if kind in each.peaks:
                    self._truncate(self._row(each.row, kind), each.peaks[kind], below=False)
            # Some place wanted too much: most likely the fullest.
            kinds = [max(kinds, key=lambda kind: self._want(self._row(each.row, kind)))]
        for kind in kinds:
            self._truncate(self._row(each.row, kind), 1.0, below=each.fitted)

    def _want(self, x: Floats) -> float:
        return (float(x @ self._mean) - 1.0) / math.sqrt(float(x @ self._covariance @ x) + self._misfit**2)

    def _truncate(self, x: Floats, level: float, *, below: bool) -> None:
        """Match the moments of the weights with x·w + misfit kept to one side of a level."""
        from scipy.special import ndtr

        along = self._covariance @ x
        variance = float(x @ along) + self._misfit**2
        sign = 1.0 if below else -1.0
        z = sign * (level - float(x @ self._mean)) / math.sqrt(variance)
        # The ratio of density to chance, by its expansion where the chance is too small to divide by.
        ratio = math.exp(-0.5 * z * z) / math.sqrt(2 * math.pi) / float(ndtr(z)) if z > -6 else -z + 1.0 / -z
        self._mean = self._mean - sign * along / math.sqrt(variance) * ratio
        self._covariance = self._covariance - np.outer(along, along) / variance * ratio * (ratio + z)


def _corrected(planned: float, kind: str, seen: Sequence[Seen]) -> tuple[float, float]:
    """What a plan comes to, by how peaks of that kind of place compared to plans; and its deviation."""
    off = [
        math.log(each.peaks[kind] / each.planned[kind])
        for each in seen
        if each.fitted and each.peaks.get(kind) and each.planned.get(kind)
    ]
    trust = plan_deviation**2 / (plan_deviation**2 + plan_scatter**2 / len(off)) if off else 0.0
    factor = math.exp(trust * sum(off) / len(off)) if off else 1.0
    return planned * factor, math.hypot(plan_scatter, plan_deviation * math.sqrt(1.0 - trust))
