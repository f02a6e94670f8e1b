"""A run on GPUs evaluates between windows: training is none the wiser, and figures are those of the CPU."""

import numpy as np
import pytest

from dflash.contract.config import load_config
from dflash.train_result import TrainResult
from dflash.trainer import prepare
from tests.small_training import on_gpus, on_logical_devices

pytestmark = pytest.mark.gpu

changes = ("objective.anchors_per_document=4", "data.held_out=0.3", "run.evaluate_documents=6")


def train(*knobs: str) -> TrainResult:
    return prepare(load_config(None, [*knobs, *changes])).run()


@pytest.mark.parametrize("split", ["1-1", "1-2", "colocated-1"])
def test_what_is_held_out_is_evaluated_beside_training(split: str) -> None:
    gpu = (*on_gpus, "devices.gpus=1", f"split={split}")
    plain, looked = train(*gpu, "run.evaluate_every=0"), train(*gpu, "run.evaluate_every=1")
    np.testing.assert_allclose(looked.losses, plain.losses, rtol=1e-4)
    assert [evaluation.step for evaluation in looked.evaluations] == [1, 2, 3]
    on_cpu = train(*on_logical_devices, "run.evaluate_every=1")
    for here, there in zip(looked.evaluations, on_cpu.evaluations, strict=True):
        assert (here.documents, here.slot_counted) == (there.documents, there.slot_counted)
        assert here.loss == pytest.approx(there.loss, rel=5e-3)
        assert here.acceptance.tokens == there.acceptance.tokens
        assert here.acceptance.pooled == pytest.approx(there.acceptance.pooled, rel=0.05)
