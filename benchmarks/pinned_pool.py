"""Worker processes with cores of their own, so that runs side by side do not take turns. Knows no work."""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

cores_each = 2


def open_pool(workers: int) -> ProcessPoolExecutor:
    """That many, each on two cores of its own where there are so many; one alone has all."""
    context = get_context("spawn")
    turns = context.Value("i", 0)
    return ProcessPoolExecutor(workers, mp_context=context, initializer=_settle, initargs=(turns, workers))


def _settle(turns: Any, workers: int) -> None:
    """Take two cores that no other worker has. What it starts stays on them too."""
    cores = sorted(os.sched_getaffinity(0))
    if 1 < workers <= len(cores) // cores_each:
        with turns.get_lock():
            first = turns.value * cores_each
            turns.value += 1
        os.sched_setaffinity(0, cores[first : first + cores_each])
