"""What a run on GPUs leaves to the next in its process: models, and no memory of its own."""

from __future__ import annotations

import pytest
import torch

from dflash.contract.config import TrainConfig, load_config
from dflash.held_parts import HeldParts, release
from dflash.trainer import TrainResult, prepare
from tests.small_training import on_gpus as small

pytestmark = pytest.mark.gpu

ways = (
    ("pipeline.token_budget=512", "transport=pinned", "transport.depth=4"),
    ("transport=host", "pipeline.prefetch_depth=2"),
    ("pipeline.schedule=lockstep", "drafter.checkpointing=layers", "objective.chunk_blocks=8"),
    ("transport=auto", "transport.trim=true"),
)


def configure(*changes: str) -> TrainConfig:
    return load_config(None, (*small, "run.max_steps=6", "devices.gpus=1", *changes))


def run(config: TrainConfig, parts: HeldParts | None = None) -> TrainResult:
    return prepare(config, parts=parts).run()


def held_bytes(parts: HeldParts) -> int:
    release(parts.devices)
    return sum(torch.cuda.memory_allocated(device.torch_device) for device in set(parts.devices.all))


def test_memory_is_back_where_it_was_after_every_run_and_losses_are_those_of_fresh_ones() -> None:
    parts = HeldParts(configure(), keep=True)
    first = run(configure(), parts)
    base = held_bytes(parts)
    assert base > 0
    for changes in ways:
        again = run(configure(*changes), parts)
        assert held_bytes(parts) < 1.02 * base, changes
        fresh = run(configure(*changes))
        release(parts.devices)
        assert again.losses == pytest.approx(fresh.losses, rel=2e-3), changes
    assert run(configure(), parts).losses == pytest.approx(first.losses, rel=2e-3)


def test_peaks_are_those_of_the_run() -> None:
    parts = HeldParts(configure("pipeline.token_budget=512"), keep=True)
    run(configure("pipeline.token_budget=512"), parts)
    device = parts.devices.targets[0]
    large = device.memory_figures()["peak_allocated_bytes"]
    release(parts.devices)
    run(configure("pipeline.token_budget=256"), parts)
    figures = device.memory_figures()
    assert figures["allocated_bytes"] <= figures["peak_allocated_bytes"] < large
