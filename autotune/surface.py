"""Throughput over a whole space, inferred from the trials: a Gaussian process on its logarithm.

The kernel is a product over knobs, τ² Π (1 + r² κ): every knob has a main effect of its own size r, and knobs
that matter much may also matter jointly. κ says how alike two choices are (see likeness.py). Single
configurations may differ from that by a roughness. Sizes, roughness and run-to-run noise are not known:
they are drawn from around what is most probable after the readings, and what follows is averaged over the
draws. Knows nothing of trials, and nothing of the physics of a pipeline.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from autotune.likeness import Likeness

Values = Mapping[str, Any]
Array = NDArray[np.float64]

# Of logarithms: (mean, deviation) of the priors.
prior_size: Final = (math.log(0.12), 1.2)  # of a knob's effect
prior_scale: Final = (math.log(0.8), 0.5)
prior_roughness: Final = (math.log(0.015), 0.7)  # of single configurations, beside what knobs explain
prior_noise: Final = (math.log(0.02), 0.7)  # of one run
level_variance: Final = 1.0  # of the mean over all configurations, around that of the readings
draws: Final = 24
_others: Final = (prior_scale, prior_roughness, prior_noise)
_jitter: Final = 1e-9
_step: Final = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A measured logarithm of tokens/s, or of its ratio to `against` in the same run."""

    values: Values
    log_rate: float
    deviation: float  # its standard error within the run
    against: Values | None = None


class Surface:
    """What the readings say of every configuration. Costs the cube of their number."""

    def __init__(self, choices: Mapping[str, Sequence[Any]], readings: Sequence[Reading]) -> None:
        self._paths = tuple(choices)
        sides = [reading.values for reading in readings]
        sides += [reading.against for reading in readings if reading.against is not None]
        self._tables = {
            path: Likeness([*choices[path], *(values[path] for values in sides)]) for path in self._paths
        }
        self._points = list({self._key(values): values for values in sides}.values())
        self._rows = self._design(readings)
        self._single = np.array([reading.against is None for reading in readings], dtype=bool)
        self._within = np.array([reading.deviation**2 for reading in readings])
        told = np.array([reading.log_rate for reading in readings])
        self._level = float(told[self._single].mean()) if self._single.any() else 0.0
        self._told = told - self._level * self._rows.sum(axis=1)
        self._likeness = self._likeness_of(self._points, self._points)
        self._means = np.array([prior_size[0]] * len(self._paths) + [each[0] for each in _others])
        self._spreads = np.array([prior_size[1]] * len(self._paths) + [each[1] for each in _others])
        self._draws = self._draw(self._find_mode())

    @property
    def noise(self) -> float:
        """Standard deviation of the logarithm from run to run."""
        return math.exp(float(np.mean([logs[-1] for logs in self._draws])))

    def at(self, points: Sequence[Values]) -> tuple[Array, Array]:
        """Mean and covariance of log tokens/s at `points`, without the noise of a run."""
        return self._condition(points, np.arange(len(self._told)))

    def leave_out(self, values: Values) -> tuple[float, float] | None:
        """What the other configurations say of this one: mean and deviation; None where nothing is left."""
        key = self._key(values)
        at = next((i for i, point in enumerate(self._points) if self._key(point) == key), None)
        kept = np.arange(len(self._told)) if at is None else np.flatnonzero(self._rows[:, at] == 0.0)
        if not len(kept):
            return None
        mean, covariance = self._condition([values], kept)
        return float(mean[0]), math.sqrt(max(float(covariance[0, 0]), 0.0))

    def _condition(self, points: Sequence[Values], kept: NDArray[np.intp]) -> tuple[Array, Array]:
        """Averaged over the draws; where they disagree, that is uncertainty too."""
        cross_likeness = self._likeness_of(points, self._points)
        own_likeness = self._likeness_of(points, points)
        rows, told = self._rows[kept], self._told[kept]
        means, covariances = [], []
        for logs in self._draws:
            known = _covariance(self._likeness, logs)
            cross = _covariance(cross_likeness, logs) @ rows.T
            inner = rows @ known @ rows.T + np.diag(self._variances(logs)[kept])
            gain = np.linalg.solve(inner, cross.T).T
            means.append(gain @ told + self._level)
            covariances.append(_covariance(own_likeness, logs) - gain @ cross.T)
        mean = np.mean(means, axis=0)
        away = np.array(means) - mean
        return mean, np.mean(covariances, axis=0) + away.T @ away / len(means)

    def _key(self, values: Values) -> tuple[Any, ...]:
        return tuple(values[path] for path in self._paths)

    def _design(self, readings: Sequence[Reading]) -> Array:
        """Which points each reading is about: +1, and −1 for what it was held against."""
        place = {self._key(values): i for i, values in enumerate(self._points)}
        rows = np.zeros((len(readings), len(self._points)))
        for i, reading in enumerate(readings):
            rows[i, place[self._key(reading.values)]] += 1.0
            if reading.against is not None:
                rows[i, place[self._key(reading.against)]] -= 1.0
        return rows

    def _variances(self, logs: Array) -> Array:
        """Of each reading. The noise of a run cancels where both sides were in one."""
        return self._within + np.where(self._single, math.exp(2 * logs[-1]), 0.0) + _jitter

    def _likeness_of(self, left: Sequence[Values], right: Sequence[Values]) -> Array:
        """An array (knobs, left, right)."""
        return np.stack(
            [
                table.between([v[path] for v in left], [v[path] for v in right])
                for path, table in self._tables.items()
            ]
        )

    def _find_mode(self) -> Array:
        """Logarithms of sizes, scale, roughness and noise, most probable after the readings."""
        from scipy.optimize import minimize

        bounds = [
            (mean - 3 * spread, mean + 3 * spread)
            for mean, spread in zip(self._means, self._spreads, strict=True)
        ]
        found: Array = minimize(self._cost, self._means, jac=True, bounds=bounds, method="L-BFGS-B").x
        return found

    def _draw(self, mode: Array) -> list[Array]:
        """From the normal distribution that the cost has around its lowest point; always the same ones."""
        steps = _step * np.eye(len(mode))
        bend = np.array([(self._cost(mode + s)[1] - self._cost(mode - s)[1]) / (2 * _step) for s in steps])
        strength, axes = np.linalg.eigh((bend + bend.T) / 2)
        strength = np.maximum(strength, 1 / self._spreads.max() ** 2)
        normal = np.random.default_rng(0).standard_normal((draws // 2, len(mode)))
        away = np.concatenate([normal, -normal]) / np.sqrt(strength) @ axes.T
        reach = 3 * self._spreads
        return list(np.clip(mode + away, self._means - reach, self._means + reach))

    def _cost(self, logs: Array) -> tuple[float, Array]:
        """Minus the log of the posterior density, and its slope."""
        off = (logs - self._means) / self._spreads
        misfit, slope = self._misfit(logs)
        return misfit + 0.5 * float(off @ off), slope + off / self._spreads

    def _misfit(self, logs: Array) -> tuple[float, Array]:
        """Minus the log likelihood, and its slope."""
        grown = _grown(self._likeness, logs)
        known = _covariance(self._likeness, logs)
        inner = self._rows @ known @ self._rows.T + np.diag(self._variances(logs))
        root = np.linalg.cholesky(inner)
        half = np.linalg.inv(root)
        inverse = half.T @ half
        weights = inverse @ self._told
        excess = np.outer(weights, weights) - inverse
        pulled = self._rows.T @ excess @ self._rows
        slopes = [
            -float(np.sum(pulled * grown * size * like / (1.0 + size * like)))
            for size, like in zip(np.exp(2 * logs[:-3]), self._likeness, strict=True)
        ]
        slopes.append(-float(np.sum(pulled * grown)))
        slopes.append(-math.exp(2 * logs[-2]) * float(np.trace(pulled)))
        slopes.append(-math.exp(2 * logs[-1]) * float(np.diag(excess)[self._single].sum()))
        misfit = 0.5 * float(self._told @ weights) + float(np.log(np.diag(root)).sum())
        return misfit, np.array(slopes)


def _covariance(likeness: Array, logs: Array) -> Array:
    """Of points whose knobs are that much alike, an array (knobs, left, right)."""
    rough: Array = math.exp(2 * logs[-2]) * (likeness.min(axis=0) == 1.0)
    return _grown(likeness, logs) + rough + level_variance


def _grown(likeness: Array, logs: Array) -> Array:
    sizes = np.exp(2 * logs[:-3])
    product: Array = np.prod(1.0 + sizes[:, None, None] * likeness, axis=0)
    return math.exp(2 * logs[-3]) * product
