"""A run on a GPU goes on from a checkpoint as if it had never stopped, in either precision of its weights."""

from pathlib import Path

import numpy as np
import pytest
import torch

from dflash.contract.config import load_config
from dflash.trainer import prepare
from tests.small_training import on_gpus

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_going_on_equals_going_straight(dtype: str, tmp_path: Path) -> None:
    knobs = (*on_gpus, "devices.gpus=1", f"drafter.dtype={dtype}", f"target.dtype={dtype}")
    knobs = (*knobs, "run.max_steps=4", "run.checkpoint_every=2", "run.keep_checkpoints=3")
    straight = prepare(load_config(None, knobs), run_path=tmp_path / "straight").run()
    resume = f"run.resume={tmp_path / 'straight' / 'checkpoints' / 'step-2'}"
    trainer = prepare(load_config(None, (*knobs, resume)), run_path=tmp_path / "resumed")
    assert trainer.first_step == 2
    resumed = trainer.run()
    assert (resumed.steps_done, resumed.optimizer_updates) == (4, 4)
    np.testing.assert_allclose(
        resumed.losses, straight.losses[2:], rtol=5e-3 if dtype == "bfloat16" else 1e-4
    )
    ours = resumed.weights()
    for name, tensor in straight.weights().items():
        torch.testing.assert_close(ours[name], tensor, rtol=2e-2, atol=2e-3, msg=name)
