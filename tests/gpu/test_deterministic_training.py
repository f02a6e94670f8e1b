"""With run.deterministic two runs on a GPU are equal to the bit, whatever the loss."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from dflash.contract.config import load_config
from dflash.trainer import TrainResult, prepare

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def ordinary_algorithms_afterwards() -> Iterator[None]:
    yield
    torch.use_deterministic_algorithms(False)


def train(loss: str) -> TrainResult:
    changes = (
        "run.deterministic=true",
        f"objective.loss={loss}",
        "run.max_steps=4",
        "run.checkpoint_every=-1",
    )
    return prepare(
        load_config(None, (*changes, "devices.kind=cuda", f"devices.gpus={torch.cuda.device_count()}"))
    ).run()


@pytest.mark.parametrize("loss", ["dflash", "dpace"])
def test_two_runs_are_equal_to_the_bit(loss: str) -> None:
    first, second = train(loss), train(loss)
    assert first.losses == second.losses
    again = second.weights()
    for name, tensor in first.weights().items():
        assert torch.equal(again[name], tensor), name
