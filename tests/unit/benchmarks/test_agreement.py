"""When two trainers count as computing the same."""

from __future__ import annotations

import torch

from benchmarks.agreement import Outcome, compare


def outcome(noise: float, seed: int, loss: float = 8.0) -> Outcome:
    wanted = torch.randn(100, generator=torch.Generator().manual_seed(0))
    apart = torch.randn(100, generator=torch.Generator().manual_seed(seed))
    return Outcome(loss, {"weight": wanted + noise * apart})


def same(reference: Outcome | None, ours: Outcome, theirs: Outcome) -> bool:
    verdict: bool = compare(reference, ours, ours, theirs)["same"]
    return verdict


def test_equal_rounding_is_the_same() -> None:
    assert same(outcome(0, 1), outcome(0.02, 2), outcome(0.02, 3))


def test_rounding_far_more_than_the_other_is_not() -> None:
    assert not same(outcome(0, 1), outcome(0.05, 2), outcome(0.01, 3))
    assert not same(outcome(0, 1), outcome(0.01, 2), outcome(0.05, 3))


def test_in_float32_a_small_difference_is_no_rounding() -> None:
    assert same(outcome(0, 1), outcome(0, 1), outcome(1e-6, 3))
    assert not same(outcome(0, 1), outcome(0, 1), outcome(0.01, 3))


def test_another_function_is_not_the_same_whoever_computes_it() -> None:
    assert not same(outcome(0, 1), outcome(0.01, 2), outcome(0.5, 3))
    assert not same(outcome(0, 1), outcome(0.5, 2), outcome(0.5, 3))
    assert not same(None, outcome(0.01, 2), outcome(0.5, 3))


def test_another_loss_is_not_the_same() -> None:
    assert not same(outcome(0, 1), outcome(0.01, 2), outcome(0.01, 3, loss=8.1))


def test_a_parameter_that_only_one_has_is_named() -> None:
    found = compare(None, outcome(0, 1), outcome(0, 1), Outcome(8.0, {"bias": torch.zeros(1)}))
    assert found == {"same": False, "parameters_of_one_only": ["bias", "weight"]}
