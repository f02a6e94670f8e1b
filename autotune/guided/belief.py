"""What is thought of every configuration's throughput: physics, its doubt, a process on the rest.

Log rate = physics + slopes × doubt of costs + main effects of knobs + pairs of knobs + roughness. How large
the effects of each knob are, the roughness and the noise of a run are learnt from the readings; a knob that
was never changed is not thought harmless because others are. Readings are rates, or
ratios of two configurations in one run: scikit-learn's process takes no ratios, hence the algebra here.
Knows nothing of memory or of what to try.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from autotune.guided.table import Table

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
level_deviation: Final = 0.15  # of all rates alike, beside physics
main_size: Final = 0.05  # of a knob's effect beside physics
pair_size: Final = 0.03
# How much what is possible counts before any reading: {value: logarithm}.
# Of the sizes above, for each knob by itself: most knobs do little, some a lot.
scales: Final = {0.2: -1.0, 0.45: -0.3, 1.0: 0.0, 2.0: -0.7, 4.0: -2.0}
roughnesses: Final = {
    0.002: 0.0,
    0.006: 0.0,
    0.012: -0.2,
    0.025: -0.6,
    0.04: -1.4,
}  # of single configurations
noises: Final = {0.01: -0.7, 0.018: -0.2, 0.028: 0.0, 0.04: 0.0, 0.06: -0.7}  # of a run
doubt: Final = 1.25  # what the rest is short of: deviations of rows that were measured later, to those told
surprise: Final = 0.3  # how far off a reading may be and count in full
wild: Final = 4.0  # degrees of freedom of a run's noise: now and then a neighbour slows one
_reweighings: Final = 4
_typical: Final = math.sqrt(
    sum(math.exp(p) * s * s for s, p in scales.items()) / sum(map(math.exp, scales.values()))
)
_sweeps: Final = 2  # over the knobs
_grid: Final = np.array(list(itertools.product(roughnesses, noises)))
_log_priors: Final = np.array([roughnesses[r] + noises[n] for r, n in itertools.product(roughnesses, noises)])
_Parts = tuple[Floats, Floats, Floats]  # of each knob [D, m, n]; what is linear; the same row


@dataclass(frozen=True)
class Prior:
    """Of log rates before any reading: [M] means, and [M, P] slopes with uncorrelated unit weights."""

    mean: Floats
    slopes: Floats
    scale: float = 1.0  # of the sizes of effects: larger where nothing is known of the physics


@dataclass(frozen=True)
class Reading:
    """log rate of a row, or its logarithm less that of `against` from the same run."""

    row: int
    value: float
    deviation: float  # of a rate: within the run; of a ratio: all there is
    against: int | None = None


class Belief:
    """The posterior over all rows."""

    def __init__(self, table: Table, prior: Prior, readings: Sequence[Reading]) -> None:
        self._table, self._prior, self._readings = table, prior, tuple(readings)
        rows = [r.row for r in readings] + [r.against for r in readings if r.against is not None]
        self._points: Ints = np.array(sorted(set(rows)), dtype=np.int64)
        place = {int(row): i for i, row in enumerate(self._points)}
        self._design = np.zeros((len(readings), len(self._points)))
        for i, reading in enumerate(readings):
            self._design[i, place[reading.row]] += 1.0
            if reading.against is not None:
                self._design[i, place[reading.against]] -= 1.0
        self._single = np.array([r.against is None for r in readings], dtype=bool)
        self._within = np.array([r.deviation for r in readings]) ** 2
        values = np.array([r.value for r in readings])
        self._off = self._tempered(values - self._design @ prior.mean[self._points])
        self._weights = np.ones(len(readings))
        self.scales = np.full(len(table.axes), _typical)
        self.roughness, self.noise = 0.012, 0.028
        self.evidence = 0.0
        if readings:
            self._fit()
        self._solve()

    # -- what is asked of it ------------------------------------------------------------------------

    @cached_property
    def mean(self) -> Floats:
        """Expected log rate of every row."""
        return self._prior.mean + self._cross @ (self._design.T @ self._pull)

    @cached_property
    def variance(self) -> Floats:
        """Of the log rate of every row, without the noise of a run."""
        spread = np.einsum("mn,mn->m", self._reduced, self._reduced)
        found: Floats = doubt**2 * np.maximum(self._own - spread, 1e-10)
        return found

    def covariance(self, rows: Ints, others: Ints) -> Floats:
        """[m, n] between rows."""
        prior = self._kernel(rows, others)
        found: Floats = doubt**2 * (prior - self._reduced[rows] @ self._reduced[others].T)
        return found

    # -- how it comes about -------------------------------------------------------------------------

    @cached_property
    def _cross(self) -> Floats:
        return self._kernel(np.arange(len(self._table)), self._points)

    @cached_property
    def _reduced(self) -> Floats:
        """[M, n] whose products with themselves are what the readings take from the prior."""
        found: Floats = np.linalg.solve(self._root, self._design @ self._cross.T).T
        return found

    @cached_property
    def _own(self) -> Floats:
        sizes = self.scales**2
        effects = main_size**2 * sizes.sum() + pair_size**2 * 0.5 * (self.scales.sum() ** 2 - sizes.sum())
        fixed = self._prior.scale**2 * (level_deviation**2 + effects) + self.roughness**2
        found: Floats = (self._prior.slopes**2).sum(axis=1) + fixed
        return found

    def _tempered(self, off: Floats) -> Floats:
        """Cut at a surprise: a collapse belongs to one place, and says little of what shares some knob."""
        reach = surprise * self._prior.scale
        level = float(np.median(off[self._single])) if self._single.any() else 0.0
        low = np.where(self._single, level - reach, -reach)
        high = np.where(self._single, np.inf, reach)
        found: Floats = np.clip(off, low, high)
        return found

    def _kernel(self, rows: Ints, others: Ints) -> Floats:
        return self._joined(self._parts(rows, others), self.scales, self.roughness)

    def _parts(self, rows: Ints, others: Ints) -> _Parts:
        codes = self._table.codes
        alike = np.stack(
            [
                likeness[codes[rows, knob]][:, codes[others, knob]]
                for knob, likeness in enumerate(self._table.likeness)
            ]
        )
        linear = (
            self._prior.slopes[rows] @ self._prior.slopes[others].T
            + (level_deviation * self._prior.scale) ** 2
        )
        return alike, linear, (rows[:, None] == others[None]).astype(float)

    def _joined(self, parts: _Parts, scales: Floats, roughness: float) -> Floats:
        alike, linear, same = parts
        smooth = self._smooth(
            np.tensordot(scales**2, alike, 1),
            np.tensordot(scales, alike, 1),
            np.tensordot(scales**2, alike**2, 1),
        )
        found: Floats = linear + smooth + roughness**2 * same
        return found

    def _smooth(self, mains: Floats, total: Floats, squares: Floats) -> Floats:
        """The sum over pairs of products comes from the square of the sum."""
        pairs = 0.5 * (total**2 - squares)
        found: Floats = self._prior.scale**2 * (main_size**2 * mains + pair_size**2 * pairs)
        return found

    def _noise_variances(self, noise: float) -> Floats:
        own = np.where(self._single, np.maximum(noise**2, self._within), self._within + 0.003**2)
        return own / self._weights

    def _fit(self) -> None:
        parts = self._parts(self._points, self._points)
        for _ in range(2):
            self._fit_scales(parts)
            likely = self._likelihoods(self._joined(parts, self.scales, 0.0), parts[2]) + _log_priors
            most = float(likely.max())
            chances = np.exp(likely - most)
            self.evidence = most + math.log(chances.sum())
            # Geometric means: what few readings cannot rule out counts, for no more than its share.
            self.roughness, self.noise = np.exp(chances @ np.log(_grid) / chances.sum())
            self._reweigh(parts)

    def _fit_scales(self, parts: _Parts) -> None:
        """How much each knob does, one after the other: root mean squares over what the readings allow.

        A knob that was never changed keeps what is thought of any, however little the others do.
        """
        values, priors = np.array(list(scales)), np.array(list(scales.values()))
        sizes = values[:, None, None]
        alike, linear, same = parts
        fixed = linear + self.roughness**2 * same
        noise = np.diag(self._noise_variances(self.noise))
        for knob in list(range(len(self.scales))) * _sweeps:
            others = self.scales.copy()
            others[knob] = 0.0
            smooth = self._smooth(
                np.tensordot(others**2, alike, 1) + sizes**2 * alike[knob],
                np.tensordot(others, alike, 1) + sizes * alike[knob],
                np.tensordot(others**2, alike**2, 1) + sizes**2 * alike[knob] ** 2,
            )
            covered = self._design @ (fixed + smooth) @ self._design.T + noise
            likely = self._log_densities(covered) + priors
            chances = np.exp(likely - likely.max())
            self.scales[knob] = math.sqrt(float(chances @ values**2 / chances.sum()))

    def _log_densities(self, covered: Floats) -> Floats:
        """Of the readings, but for a constant, under each of the covariances [k, n, n]."""
        at = np.arange(len(self._readings))
        roots = np.linalg.cholesky(covered)
        white = np.linalg.solve(roots, np.broadcast_to(self._off[:, None], (len(covered), len(at), 1)))[
            ..., 0
        ]
        found: Floats = -0.5 * (white**2).sum(1) - np.log(roots[:, at, at]).sum(1)
        return found

    def _covered(self, parts: _Parts) -> Floats:
        known = self._joined(parts, self.scales, self.roughness)
        found: Floats = self._design @ known @ self._design.T + np.diag(self._noise_variances(self.noise))
        return found

    def _likelihoods(self, known: Floats, same: Floats) -> Floats:
        """Log likelihood at every point of the grid, but for a constant."""
        variances = np.stack([self._noise_variances(each) for each in noises])
        rough, noise = _grid.T
        covered = self._design @ known @ self._design.T
        covered = covered + (rough**2)[:, None, None] * (self._design @ same @ self._design.T)
        at = np.arange(len(self._readings))
        covered[:, at, at] += variances[np.searchsorted(list(noises), noise)]
        return self._log_densities(covered)

    def _reweigh(self, parts: _Parts) -> None:
        """Rates far from what all the others say count for less: noise has heavy tails."""
        for _ in range(_reweighings):
            covered = self._covered(parts)
            inverse = np.linalg.inv(covered)
            variances = self._noise_variances(self.noise)
            # What the noise of each reading is thought to have been, and how sure that is.
            off = variances * (inverse @ self._off)
            left = variances - variances**2 * np.diag(inverse)
            squares = (off**2 + left) / (variances * self._weights)
            self._weights = np.where(self._single, (wild + 1.0) / (wild + squares), 1.0)
            self._weights = np.clip(self._weights, 0.02, 1.25)

    def _solve(self) -> None:
        parts = self._parts(self._points, self._points)
        self._root = np.linalg.cholesky(self._covered(parts))
        self._pull = np.linalg.solve(self._root.T, np.linalg.solve(self._root, self._off))
