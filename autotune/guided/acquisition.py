"""What a configuration promises against another: the expected improvement and the chance to be ahead.

The difference of both is what counts: what is common to them cancels. Knows nothing of trials or memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.guided.belief import Belief

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Difference:
    """Of the log rate of every row to that of one: mean and deviation, [M]."""

    mean: Floats
    deviation: Floats

    @classmethod
    def to(cls, rates: Belief, row: int) -> Difference:
        """To that of `row`."""
        shared = rates.covariance(np.arange(len(rates.mean)), np.array([row]))[:, 0]
        variance = rates.variance + rates.variance[row] - 2.0 * shared
        variance[row] = 0.0
        return cls(rates.mean - rates.mean[row], np.sqrt(np.maximum(variance, 1e-12)))

    def improvement(self, least: float = 0.0) -> Floats:
        """What is expected beyond `least`, where anything below counts as no change."""
        from scipy.special import ndtr

        beyond = self.mean - least
        z = beyond / self.deviation
        density = np.exp(-0.5 * z * z) / np.sqrt(2.0 * np.pi)
        found: Floats = beyond * ndtr(z) + self.deviation * density
        return found

    def exceeds(self, least: float) -> Floats:
        """The chance that the difference is above `least`."""
        from scipy.special import ndtr

        chance: Floats = ndtr((self.mean - least) / self.deviation)
        return chance
