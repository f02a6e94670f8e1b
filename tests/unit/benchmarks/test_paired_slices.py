"""Pairs of slices: rates that cut no batch, losses with their sign, bounds that mean what they say."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from benchmarks.paired_slices import Slice, bounds, compare, order_of, rate_in, t_quantiles


def ends(worker: int, first_ns: int, every_ns: int, count: int, amount: int) -> np.ndarray:
    """Rows of a worker that ends a batch of `amount` every so often."""
    return np.array([(worker, first_ns + n * every_ns, (n + 1) * amount) for n in range(count)], np.int64)


def test_every_second_pair_is_turned_round() -> None:
    assert order_of(3) == [(0, False), (0, True), (1, True), (1, False), (2, False), (2, True)]


@pytest.mark.parametrize("start_ns", [0, 333_000_000, 999_999_999])
def test_a_rate_does_not_depend_on_where_a_slice_cuts_batches(start_ns: int) -> None:
    progress = ends(0, 500, 70_000_000, 1000, 7)
    found = rate_in(progress, Slice(0, True, start_ns, start_ns + 3_000_000_000))
    assert found == pytest.approx(7 / 0.07, rel=1e-9)


def test_rates_of_workers_add_up() -> None:
    progress = np.concatenate([ends(0, 0, 100_000_000, 100, 1), ends(1, 7, 50_000_000, 200, 3)])
    assert rate_in(progress, Slice(0, False, 0, 5_000_000_000)) == pytest.approx(10 + 60)


def test_a_worker_that_hardly_moves_in_a_slice_is_refused() -> None:
    progress = np.concatenate([ends(0, 0, 10_000_000, 1000, 1), ends(1, 0, 2_000_000_000, 5, 1)])
    with pytest.raises(ValueError, match="worker 1 noted its progress 3 times"):
        rate_in(progress, Slice(0, False, 0, 5_000_000_000))


def slices_of(pairs: int) -> list[Slice]:
    return [Slice(pair, on, n, n + 1) for n, (pair, on) in enumerate(order_of(pairs))]


def test_a_loss_is_positive_and_a_steady_drift_is_none() -> None:
    slices = slices_of(20)
    drifting = [1000 * (1 - 0.001 * n) * (0.97 if part.on else 1.0) for n, part in enumerate(slices)]
    told = compare(slices, drifting)
    assert [pair["on"] < pair["off"] for pair in told["pairs"]] == [True] * 20
    assert told["lost"]["mean"] == pytest.approx(0.03, abs=1e-4)
    assert told["equal_neighbours"]["count"] == 19
    assert told["equal_neighbours"]["mean"] == pytest.approx(0.001, rel=0.1)


def test_one_pair_has_no_bounds() -> None:
    told = compare(slices_of(1), [10.0, 9.0])
    assert told["lost"]["mean"] == pytest.approx(0.1)
    assert told["lost"]["upper_95_one_sided"] is None
    assert told["lost"]["interval_95"] is None
    assert told["equal_neighbours"] is None


@pytest.mark.parametrize("count", [3, 14])
def test_bounds_hold_as_often_as_they_promise(count: int) -> None:
    chance, trials = random.Random(count), 4000
    above = inside = 0
    for _ in range(trials):
        told = bounds([chance.gauss(0.01, 0.05) for _ in range(count)])
        low, high = told["interval_95"]
        above += told["upper_95_one_sided"] >= 0.01
        inside += low <= 0.01 <= high
    assert above / trials == pytest.approx(0.95, abs=0.015)  # four standard deviations
    assert inside / trials == pytest.approx(0.95, abs=0.015)


def test_quantiles_are_those_of_students_distribution() -> None:
    t = np.linspace(-60, 60, 240_001)
    for freedom, quantiles in t_quantiles.items():
        if freedom < 3:
            continue  # tails too heavy to be integrated like this
        density = (1 + t * t / freedom) ** (-(freedom + 1) / 2)
        density *= math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2))
        density /= math.sqrt(freedom * math.pi)
        for quantile, share in zip(quantiles, (0.95, 0.975), strict=True):
            assert np.trapezoid(density[t <= quantile], t[t <= quantile]) == pytest.approx(share, abs=2e-4)


def test_between_rows_of_the_table_the_wider_bound_is_taken() -> None:
    assert 16 not in t_quantiles
    values = [0.0, 1.0] * 8 + [0.5]  # 17 values: 16 degrees of freedom
    told = bounds(values)
    error = told["standard_deviation"] / math.sqrt(17)
    assert told["upper_95_one_sided"] == pytest.approx(told["mean"] + t_quantiles[15][0] * error)
