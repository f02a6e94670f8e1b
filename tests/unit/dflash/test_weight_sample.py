"""Weights are known by a sample: the same in any precision, another after any training."""

from __future__ import annotations

import pytest
import torch

from dflash.weight_sample import sample_weights


def weights(change: float = 0.0) -> list[tuple[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    drawn = [
        (name, torch.randn(shape, generator=generator)) for name, shape in (("b", (40, 30)), ("a", (3,)))
    ]
    return [(name, tensor.bfloat16().float() * (1 + change)) for name, tensor in drawn]


def test_the_same_weights_are_the_same_in_any_precision_and_order() -> None:
    known = sample_weights(weights())
    assert known == sample_weights(reversed(weights()))
    assert known == sample_weights((name, tensor.bfloat16()) for name, tensor in weights())


def test_others_are_others() -> None:
    known = sample_weights(weights())
    shaped = [(name, tensor.reshape(-1)) for name, tensor in weights()]
    renamed = [(name + "x", tensor) for name, tensor in weights()]
    for other in (weights(0.02), shaped, renamed, weights()[:1]):
        assert sample_weights(other) != known


def test_empty_and_single_values_are_sampled() -> None:
    assert sample_weights([("a", torch.zeros(0))]) != sample_weights([("a", torch.zeros(1))])


@pytest.mark.parametrize("size", [0, 1, 2, 63, 64, 65, 28_311_552, 2**31 + 1])
def test_tensors_of_any_size_are_looked_at_from_the_first_value_to_the_last(size):
    values = torch.zeros(()).expand(size)  # takes no memory
    assert len(sample_weights([("a", values)])) == 32
