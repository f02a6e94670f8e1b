"""Roots of covariance matrices, for draws. Knows nothing of what varies."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def square_root(covariance: Floats) -> Floats:
    """A matrix whose product with its transpose is `covariance`."""
    values, vectors = np.linalg.eigh(0.5 * (covariance + covariance.T))
    root: Floats = vectors * np.sqrt(np.maximum(values, 0.0))
    return root
