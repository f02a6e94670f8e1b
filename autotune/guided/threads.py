"""One thread for linear algebra: a run being measured beside it needs the cores.

Matrices here are small, and more threads would bring next to nothing. Knows nothing of what is computed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController


@contextmanager
def one_thread() -> Iterator[None]:
    """Within it the BLAS of this process has one thread; afterwards what it had before."""
    with _controller().limit(limits=1, user_api="blas"):
        yield


@lru_cache(maxsize=1)
def _controller() -> ThreadpoolController:
    """Of the libraries that are loaded by now: numpy's and scipy's are."""
    import scipy.linalg  # noqa: F401  (so that its library is among them)
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
