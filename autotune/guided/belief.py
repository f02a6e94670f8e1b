"""What is thought of every configuration's throughput: physics, its doubt, a process on the rest.

Log rate = physics + slopes × doubt of costs + main effects of knobs + pairs of knobs + roughness. How large
the last three are, and the noise of a run, are those most probable after the readings. Readings are rates, or
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
scales: Final = {0.35: -1.5, 0.6: -0.5, 1.0: 0.0, 1.6: -0.3, 2.6: -1.2, 5.0: -2.5}  # of the sizes above
roughnesses: Final = {
    0.002: 0.0,
    0.006: 0.0,
    0.012: -0.2,
    0.025: -0.6,
    0.04: -1.4,
}  # of single configurations
noises: Final = {0.01: -0.7, 0.018: -0.2, 0.028: 0.0, 0.04: 0.0, 0.06: -0.7}  # of a run
wild: Final = 4.0  # degrees of freedom of a run's noise: now and then a neighbour slows one
_reweighings: Final = 4
_grid: Final = np.array(list(itertools.product(scales, roughnesses, noises)))
_log_priors: Final = np.array(
    [scales[s] + roughnesses[r] + noises[n] for s, r, n in itertools.product(scales, roughnesses, noises)]
)
_Parts = tuple[Floats, Floats, Floats]


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
        self._off = np.array([r.value for r in readings]) - self._design @ prior.mean[self._points]
        self._weights = np.ones(len(readings))
        self.scale, self.roughness, self.noise = 1.0, 0.012, 0.028
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
        found: Floats = np.maximum(self._own - spread, 1e-10)
        return found

    def covariance(self, rows: Ints, others: Ints) -> Floats:
        """[m, n] between rows."""
        prior = self._kernel(rows, others)
        found: Floats = prior - self._reduced[rows] @ self._reduced[others].T
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
        knobs = len(self._table.axes)
        size = (self._prior.scale * self.scale) ** 2
        effects = knobs * main_size**2 + knobs * (knobs - 1) / 2 * pair_size**2
        fixed = (level_deviation * self._prior.scale) ** 2 + size * effects + self.roughness**2
        found: Floats = (self._prior.slopes**2).sum(axis=1) + fixed
        return found

    def _kernel(self, rows: Ints, others: Ints) -> Floats:
        smooth, linear, same = self._parts(rows, others)
        return linear + (self._prior.scale * self.scale) ** 2 * smooth + self.roughness**2 * same

    def _parts(self, rows: Ints, others: Ints) -> _Parts:
        codes = self._table.codes
        alike = [
            likeness[codes[rows, knob]][:, codes[others, knob]]
            for knob, likeness in enumerate(self._table.likeness)
        ]
        total = sum(alike)
        squares = sum(each**2 for each in alike)
        # The sum over pairs of products, from the square of the sum.
        smooth = main_size**2 * total + pair_size**2 * 0.5 * (total**2 - squares)
        linear = (
            self._prior.slopes[rows] @ self._prior.slopes[others].T
            + (level_deviation * self._prior.scale) ** 2
        )
        return smooth, linear, (rows[:, None] == others[None]).astype(float)

    def _noise_variances(self, noise: float) -> Floats:
        own = np.where(self._single, np.maximum(noise**2, self._within), self._within + 0.003**2)
        return own / self._weights

    def _fit(self) -> None:
        parts = self._parts(self._points, self._points)
        for _ in range(2):
            likely = self._likelihoods(parts) + _log_priors
            most = float(likely.max())
            chances = np.exp(likely - most)
            self.evidence = most + math.log(chances.sum())
            # Geometric means: what few readings cannot rule out counts, for no more than its share.
            self.scale, self.roughness, self.noise = np.exp(chances @ np.log(_grid) / chances.sum())
            self._reweigh(parts)

    def _covered(self, parts: _Parts, scale: float, roughness: float, noise: float) -> Floats:
        smooth, linear, same = parts
        known = linear + (self._prior.scale * scale) ** 2 * smooth + roughness**2 * same
        found: Floats = self._design @ known @ self._design.T + np.diag(self._noise_variances(noise))
        return found

    def _likelihoods(self, parts: _Parts) -> Floats:
        """Log likelihood at every point of the grid, but for a constant."""
        smooth, linear, same = (self._design @ part @ self._design.T for part in parts)
        variances = np.stack([self._noise_variances(each) for each in noises])
        sizes, rough, noise = _grid.T
        covered = linear + ((self._prior.scale * sizes) ** 2)[:, None, None] * smooth
        covered += (rough**2)[:, None, None] * same
        at = np.arange(len(self._readings))
        covered[:, at, at] += variances[np.searchsorted(list(noises), noise)]
        roots = np.linalg.cholesky(covered)
        white = np.linalg.solve(roots, np.broadcast_to(self._off[:, None], (len(_grid), len(at), 1)))[..., 0]
        found: Floats = -0.5 * (white**2).sum(1) - np.log(roots[:, at, at]).sum(1)
        return found

    def _reweigh(self, parts: _Parts) -> None:
        """Rates far from what all the others say count for less: noise has heavy tails."""
        for _ in range(_reweighings):
            covered = self._covered(parts, self.scale, self.roughness, self.noise)
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
        self._root = np.linalg.cholesky(self._covered(parts, self.scale, self.roughness, self.noise))
        self._pull = np.linalg.solve(self._root.T, np.linalg.solve(self._root, self._off))
