"""Schedule, clip, masters and state of the optimizer."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from torch import nn

from dflash.contract.errors import CheckpointError
from dflash.contract.sections import OptimizerConfig
from dflash.optimizer import Optimizer, learning_rate


def parameters(dtype: torch.dtype = torch.float32) -> list[tuple[str, nn.Parameter]]:
    generator = torch.Generator().manual_seed(0)
    shapes = {"a": (3, 4), "b": (5,)}
    return [(n, nn.Parameter(torch.randn(s, generator=generator).to(dtype))) for n, s in shapes.items()]


def gradients(seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(s, generator=generator) for s in ((3, 4), (5,))]


def test_the_rate_rises_linearly_then_falls_as_a_cosine_to_nearly_zero() -> None:
    config = OptimizerConfig(lr=1.0, warmup_ratio=0.1)
    rates = [learning_rate(config, step, 100) for step in range(100)]
    assert rates[:10] == pytest.approx([0.1 * (i + 1) for i in range(10)])
    assert rates[10] == 1.0
    assert rates[55] == pytest.approx(0.5)
    assert rates[99] == pytest.approx(0.5 * (1 + math.cos(math.pi * 89 / 90)))
    assert all(a > b for a, b in pairwise(rates[10:]))


def test_a_step_equals_torch_adamw_on_clipped_gradients() -> None:
    config = OptimizerConfig(lr=0.1, warmup_ratio=0.0, clip_norm=0.5, weight_decay=0.01)
    ours, reference = parameters(), parameters()
    optimizer = Optimizer(ours, config, total_steps=4)
    adamw = torch.optim.AdamW([p for _, p in reference], weight_decay=0.01)
    for step in range(3):
        grads = gradients(step)
        result = optimizer.step([g.clone() for g in grads])
        assert float(result.grad_norm) == pytest.approx(float(torch.cat([g.flatten() for g in grads]).norm()))
        for (_, p), g in zip(reference, grads, strict=True):
            p.grad = g.clone()
        torch.nn.utils.clip_grad_norm_([p for _, p in reference], 0.5)
        adamw.param_groups[0]["lr"] = learning_rate(config, step, 4)
        adamw.step()
        for (_, a), (_, b) in zip(ours, reference, strict=True):
            torch.testing.assert_close(a, b)


def test_bfloat16_parameters_follow_float32_masters() -> None:
    """Updates far below bfloat16 resolution still add up."""
    config = OptimizerConfig(lr=1e-5, warmup_ratio=0.0, clip_norm=0.0)
    small = [("a", nn.Parameter(torch.full((4,), 1.0, dtype=torch.bfloat16)))]
    optimizer = Optimizer(small, config, total_steps=10**6)
    for _ in range(2000):
        optimizer.step([torch.ones(4)])
    assert small[0][1].dtype == torch.bfloat16
    assert float(small[0][1].detach()[0]) == pytest.approx(1 - 2000e-5, abs=4e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_going_on_from_a_state_equals_going_straight(dtype: torch.dtype) -> None:
    config = OptimizerConfig(lr=0.1)
    straight, first, second = parameters(dtype), parameters(dtype), parameters(dtype)
    whole, half, rest = (Optimizer(p, config, total_steps=6) for p in (straight, first, second))
    for step in range(6):
        whole.step(gradients(step))
    for step in range(3):
        half.step(gradients(step))
    rest.restore({n: t.clone() for n, t in half.state().items()}, steps_done=3)
    for step in range(3, 6):
        rest.step(gradients(step))
    for (_, a), (_, b) in zip(straight, second, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("damage", ["missing", "shape"])
def test_a_state_that_does_not_fit_is_named(damage: str) -> None:
    optimizer = Optimizer(parameters(), OptimizerConfig(), total_steps=6)
    state = dict(optimizer.state())
    if damage == "missing":
        del state["exp_avg.b"]
    else:
        state["exp_avg.b"] = torch.zeros(6)
    with pytest.raises(CheckpointError) as caught:
        optimizer.restore(state, 1)
    assert caught.value.where == "exp_avg.b"
    assert caught.value.expected == "[5]"
