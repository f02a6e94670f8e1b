"""A target of GatedDeltaNet and gated attention layers trains a drafter end to end, documents kept apart."""

from __future__ import annotations

import numpy as np
import pytest

from dflash.attention import full, sliding
from dflash.contract.config import TrainConfig, load_config
from dflash.trainer import Trainer, TrainResult, prepare
from tests.small_training import on_logical_devices


def configure(*changes: str) -> TrainConfig:
    return load_config(
        None,
        (
            *on_logical_devices,
            "target.model=random:tiny-hybrid",
            "drafter.layers=3",
            "drafter.sliding_window=16",
            "optimizer.lr=0.003",
            "run.max_steps=4",
            *changes,
        ),
    )


@pytest.fixture(scope="module")
def trained() -> tuple[Trainer, TrainResult]:
    trainer = prepare(configure())
    return trainer, trainer.run()


def test_a_hybrid_target_trains_a_drafter_of_mixed_layers(trained: tuple[Trainer, TrainResult]) -> None:
    trainer, result = trained
    assert trainer.targets[0].spec.hybrid
    assert trainer.group.leader.drafter.spec.layer_types == (sliding, sliding, full)
    assert trainer.layout == "padded"
    assert result.steps_done == 4
    assert np.isfinite(result.losses).all()
    assert result.losses[-1] < result.losses[0] - 0.02


def test_its_update_does_not_depend_on_split_or_budget(trained: tuple[Trainer, TrainResult]) -> None:
    again = prepare(configure("split=2-1", "pipeline.token_budget=256")).run()
    np.testing.assert_allclose(again.losses, trained[1].losses, rtol=2e-5)
    assert again.documents_trained == trained[1].documents_trained
