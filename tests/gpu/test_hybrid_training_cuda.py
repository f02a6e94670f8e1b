"""A target of GatedDeltaNet and gated attention layers trains a drafter on CUDA as it does on the CPU."""

import numpy as np
import pytest
import torch

from dflash.attention import full, sliding
from dflash.contract.config import load_config
from dflash.trainer import prepare
from tests.small_training import on_gpus, on_logical_devices

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore"),  # compilers talk
]
hybrid = (
    "target.model=random:tiny-hybrid",
    "drafter.layers=3",
    "drafter.sliding_window=16",
    "optimizer.lr=0.003",
    "objective.anchors_per_document=4",
    "run.max_steps=4",
)


def test_a_hybrid_target_trains_and_its_losses_are_those_of_the_cpu() -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    trainer = prepare(load_config(None, [*on_gpus, *hybrid, "split=colocated-1"]))
    result = trainer.run()
    assert trainer.layout == "padded"
    assert trainer.group.leader.drafter.spec.layer_types == (sliding, sliding, full)
    assert result.losses[-1] < result.losses[0] - 0.02
    on_cpu = prepare(load_config(None, [*on_logical_devices, *hybrid])).run()
    np.testing.assert_allclose(result.losses, on_cpu.losses, rtol=5e-3)


def test_in_bfloat16_it_trains_too() -> None:
    changes = ("split=colocated-1", "target.dtype=bfloat16", "drafter.dtype=bfloat16")
    result = prepare(load_config(None, [*on_gpus, *hybrid, *changes])).run()
    assert np.isfinite(result.losses).all()
    assert result.losses[-1] < result.losses[0] - 0.02
