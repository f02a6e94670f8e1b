"""Random numbers that depend on named facts only: counter-based, so no draw shifts another.

Built on the raw output of Philox, which NumPy promises never to change, unlike the methods of `Generator`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

purposes = {"order": 0, "anchors": 1, "answers": 2}
_low64 = 2**64 - 1


def random_keys(count: int, *, seed: int, purpose: str, epoch: int, document: int = 0) -> NDArray[np.uint64]:
    """`count` random 64-bit numbers; sorting by them shuffles. Different facts give independent streams."""
    key = np.array([seed & _low64, purposes[purpose]], np.uint64)
    # The generator counts up from the low words, so streams of different documents and epochs never meet.
    counter = np.array([0, 0, document, epoch], np.uint64)
    keys: NDArray[np.uint64] = np.random.Philox(key=key, counter=counter).random_raw(count)
    return keys
