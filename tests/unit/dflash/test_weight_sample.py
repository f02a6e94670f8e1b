"""Weights are known by a sample: the same in any precision, another after any training."""

from __future__ import annotations

import pytest
import torch

from dflash.weight_sample import sample_weights


def weights(change: float = 0.0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randn(shape, generator=generator) for shape in ((40, 30), (3,))]
    return [tensor.bfloat16().float() * (1 + change) for tensor in drawn]


def test_the_same_weights_are_the_same_in_any_precision_and_order() -> None:
    known = sample_weights(weights())
    assert known == sample_weights(reversed(weights()))
    assert known == sample_weights(tensor.bfloat16() for tensor in weights())


def test_others_are_others() -> None:
    known = sample_weights(weights())
    shaped = [tensor.reshape(-1) for tensor in weights()]
    for other in (weights(0.02), shaped, weights()[:1], [*weights(), torch.zeros(1)]):
        assert sample_weights(other) != known


def test_empty_and_single_values_are_sampled() -> None:
    assert sample_weights([torch.zeros(0)]) != sample_weights([torch.zeros(1)])


@pytest.mark.parametrize("size", [0, 1, 2, 63, 64, 65, 28_311_552, 2**31 + 1])
def test_tensors_of_any_size_are_looked_at_from_the_first_value_to_the_last(size: int) -> None:
    values = torch.zeros(()).expand(size)  # takes no memory
    assert len(sample_weights([values])) == 32
