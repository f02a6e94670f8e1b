"""A second try for what says nothing where other jobs had the CPUs."""

from __future__ import annotations

import time
from collections.abc import Callable

import psutil
import pytest

tries = 3
busy_others = 0.3  # of a core, above which a try was not this test's own


def try_undisturbed(attempt: Callable[[int], str | None]) -> None:
    """Call `attempt` with 0, 1, … until it finds nothing wrong; fails with what it found in a quiet try.

    It returns, or asserts, what is wrong. Skips where no try was quiet: what was found may be the other jobs.
    What no other job excuses, such as a run that broke, it tells by `pytest.fail`, which ends the test.
    """
    said = []
    for number in range(tries):
        begin_s, others_s = time.monotonic(), cpu_of_others_s()
        try:
            wrong = attempt(number)
        except AssertionError as error:
            wrong = str(error)
        if wrong is None:
            return
        said.append(wrong)
        if cpu_of_others_s() - others_s <= busy_others * (time.monotonic() - begin_s):
            pytest.fail("; ".join(said))
    pytest.skip(f"other jobs had the CPUs in all of {tries} tries: {'; '.join(said)}")


def cpu_of_others_s() -> float:
    """CPU time that this machine has spent on anything but this process and its children that have ended."""
    times, own = psutil.cpu_times(), psutil.Process().cpu_times()
    mine = own.user + own.system + own.children_user + own.children_system
    return float(times.user + times.nice + times.system - mine)
