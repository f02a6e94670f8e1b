"""When a trial in progress is hopeless."""

from __future__ import annotations

import numpy as np
import pytest

from autotune.early_stop import HopelessRun


def window_ends(rates: list[float]) -> list[tuple[int, int]]:
    """Ends of windows of 1000 tokens that went at these tokens/s, behind a first end."""
    times = np.cumsum([0.0, *(1000 / rate for rate in rates)])
    return [(round(1e9 * t), 1000) for t in times]


def scattered(mean: float, count: int, seed: int = 0) -> list[float]:
    draw = np.random.default_rng(seed)
    return (mean * np.exp(0.04 * draw.standard_normal(count))).tolist()


def first_stop(run: HopelessRun, rates: list[float]) -> int | None:
    """After how many windows it was called hopeless, fed one by one."""
    for number, end in enumerate(window_ends(rates)):
        if run.add([end]) is not None:
            return number
    return None


def test_a_run_at_half_the_pace_ends_as_soon_as_it_is_steady() -> None:
    run = HopelessRun(bar=1000.0)
    assert first_stop(run, scattered(500.0, 60)) in (10, 11, 12, 13)
    assert run.seen is not None
    assert run.seen.low < 500.0 < run.seen.high * 1.02


@pytest.mark.parametrize("pace", [0.96, 1.0, 1.1])
def test_a_run_that_may_win_is_let_be(pace: float) -> None:
    for seed in range(20):
        assert first_stop(HopelessRun(bar=1000.0), scattered(1000.0 * pace, 80, seed)) is None


def test_warming_up_is_no_reason() -> None:
    # Half of the first windows at a fifth of the pace: the mean is hopeless, what follows is not.
    assert first_stop(HopelessRun(bar=1000.0), [200.0] * 8 + scattered(1000.0, 40)) is None


def test_without_a_bar_nothing_is_hopeless() -> None:
    assert first_stop(HopelessRun(bar=0.0), scattered(1.0, 30)) is None
