"""Pooling and comparing throughputs, against tables and simulation."""

import math
import random

import pytest

from autotune.comparison import Rate, compare, measure_noise, pool, t_quantile


def rate(value, spread=0.01):
    return Rate(value, value * (1 - spread), value * (1 + spread))


@pytest.mark.parametrize(
    ("freedom", "expected"), [(1, 6.3138), (2, 2.9200), (10, 1.8125), (11, 1.7959), (60, 1.6706)]
)
def test_t_quantiles_match_the_tables(freedom, expected):
    assert t_quantile(freedom) == pytest.approx(expected, rel=1e-3)


def test_one_run_has_its_own_interval():
    only = rate(100.0, 0.05)
    pooled = pool([only], measure_noise({0: [only]}))
    assert (pooled.mid, pooled.low, pooled.high) == pytest.approx((100, 95, 105), rel=2e-3)


def test_noise_is_pooled_over_configurations():
    groups = {0: [rate(100), rate(110)], 1: [rate(200), rate(200)]}
    noise = measure_noise(groups)
    assert noise.freedom == 2
    assert noise.variance == pytest.approx(math.log(1.1) ** 2 / 4)


def test_noise_within_the_runs_is_the_floor():
    same = [rate(100.0, 0.2), rate(100.0, 0.2)]
    noise = measure_noise({0: same})
    assert noise.variance == 0
    assert pool(same, noise).low < 90


def test_more_runs_narrow_the_interval():
    few, many = [rate(100.0)] * 2, [rate(100.0)] * 8
    noise = measure_noise({0: few, 1: many})
    assert pool(many, noise).low > pool(few, noise).low


def test_ratio_interval_holds_the_truth_as_often_as_it_says():
    """90 % intervals over 400 simulated studies of noise 3 %: the share that hold the true ratio of 1.1."""
    generator = random.Random(1)
    held = 0
    for _ in range(400):
        groups = {
            i: [rate(speed * math.exp(generator.gauss(0, 0.03))) for _ in range(3)]
            for i, speed in enumerate((110, 105, 100))
        }
        ratio = compare(groups[0], groups[2], measure_noise(groups))
        held += ratio.low <= 1.1 <= ratio.high
    assert 0.85 <= held / 400 <= 0.97


def test_runs_without_intervals_are_compared_by_how_repeats_differ():
    groups = {0: [Rate(100.0), Rate(104.0)], 1: [Rate(110.0)]}
    noise = measure_noise(groups)
    ratio = compare(groups[1], groups[0], noise)
    assert ratio.low < 1.0 < ratio.high
    assert ratio.mid == pytest.approx(110 / math.sqrt(100 * 104))


def test_a_run_of_which_no_noise_is_known_is_not_taken_as_exact():
    only = pool([Rate(100.0)], measure_noise({0: [Rate(100.0)]}))
    assert only.low == pytest.approx(100 * math.exp(-1.6449 * 0.04))
