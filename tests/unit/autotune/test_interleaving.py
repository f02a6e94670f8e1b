"""What four turns of two configurations tell."""

from __future__ import annotations

import math

import numpy as np
import pytest

from autotune.interleaving import Segment, compare, join


def segment(log_rate: float, deviation: float = 0.01) -> Segment:
    mid = math.exp(log_rate)
    return Segment(
        tokens_per_s=mid, low=mid * math.exp(-1.6449 * deviation), high=mid * math.exp(1.6449 * deviation),
        windows=10,
    )  # fmt: skip


def test_a_steady_drift_weighs_on_both_alike() -> None:
    drift, gain = -0.05, 0.03
    turns = [segment(8 + drift * turn + (gain if turn in (1, 2) else 0.0)) for turn in range(4)]
    log_ratio, deviation = compare(turns)
    assert log_ratio == pytest.approx(gain)
    assert deviation == pytest.approx(0.01)  # by the windows alone


def test_turns_that_jump_widen_the_error() -> None:
    _, calm = compare([segment(8.0), segment(8.0), segment(8.0), segment(8.0)])
    _, jumpy = compare([segment(8.0), segment(8.2), segment(8.0), segment(8.0)])
    assert jumpy > 10 * calm


def test_the_error_is_that_of_the_comparison() -> None:
    draw = np.random.default_rng(3)
    scatter = 0.02
    found = [
        compare([segment(8 + scatter * draw.standard_normal(), scatter) for _ in range(4)])
        for _ in range(4000)
    ]
    ratios, deviations = (np.array(column) for column in zip(*found, strict=True))
    assert abs(ratios.mean()) < 0.002
    assert ratios.std() == pytest.approx(scatter, rel=0.05)
    assert 0.9 < (abs(ratios) < 1.645 * deviations).mean() < 0.97


def test_turns_of_one_configuration_join() -> None:
    whole = join([segment(8.0), segment(8.1)])
    assert math.log(whole.tokens_per_s) == pytest.approx(8.05)
    assert whole.low < math.exp(8.0) < math.exp(8.1) < whole.high
    assert whole.windows == 20
