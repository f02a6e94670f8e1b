"""Which split a run should have: few devices that bring enough, of those that there are."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dflash.contract.config import TrainConfig
from profiler.diagnosis import diagnose
from profiler.forecast.predictor import Predictor
from profiler.forecast.run_forecast import RunForecast
from profiler.forecast.setting import Setting
from profiler.forecast.splits import choose_split
from profiler.run import Run
from profiler.timeline import Timeline
from tests.played_pipeline import play


class Proportional:
    """Tokens a second by proportion: a target makes 1, a drafter takes `drafter`; now is 2-1."""

    def __init__(self, drafter: float) -> None:
        self.drafter = drafter

    def rate(self, setting: Setting) -> float:
        if setting.shares_devices:
            return setting.targets / (1 + 1 / self.drafter)
        return min(setting.targets, setting.drafters * self.drafter)

    def rank(self, settings: Any) -> list[float]:
        return [self.rate(setting) for setting in settings]

    def predict(self, setting: Setting) -> SimpleNamespace:
        return SimpleNamespace(ratio=self.rate(setting) / min(2.0, self.drafter))


def run_with(split: str = "2-1", *, emulated: bool, gpus: int = 3) -> Run:
    config = TrainConfig().replacing({"pipeline.split": split})
    uuids = [f"GPU-{n}" for n in range(gpus)]
    manifest = {
        "emulated": emulated,
        "devices": [{"name": f"cuda:{n}", "model": "H", "uuid": uuid} for n, uuid in enumerate(uuids[:3])],
        "hardware": {"gpus": [{"uuid": u, "name": "H"} for u in uuids], "visible_gpus": uuids},
    }
    return cast(Run, SimpleNamespace(config=config, manifest=manifest))


@pytest.mark.parametrize(
    ("drafter", "emulated", "gpus", "split"),
    [
        (0.8, True, 0, "2-3"),  # the targets' pace is reached with three drafters
        (1.4, True, 0, "2-2"),
        (0.8, False, 3, "colocated-3"),  # 1.33, where moving a device leaves one target: 1
        (0.4, False, 3, "1-2"),  # not 0.86 but 0.8 as well, and no sharing
        (1.4, False, 4, "2-2"),
        (1.95, True, 0, None),
    ],
)
def test_the_fewest_devices_that_bring_enough(
    drafter: float, emulated: bool, gpus: int, split: str | None
) -> None:
    predictor = cast(Predictor, Proportional(drafter))
    choice = choose_split(run_with(emulated=emulated, gpus=gpus), predictor, 2.0 / min(2.0, drafter) - 1)
    assert (choice.split if choice else None) == split


def test_a_colocated_configuration_keeps_its_split() -> None:
    predictor = cast(Predictor, Proportional(0.8))
    assert choose_split(run_with("colocated-3", emulated=True), predictor, 1.0) is None


def test_a_limit_of_devices_is_kept() -> None:
    """Two targets and a drafter on two devices, and no third one, logical or not."""
    run = run_with("2-1", emulated=True)
    run = cast(Run, SimpleNamespace(config=run.config.replacing({"devices.gpus": 2}), manifest=run.manifest))
    choice = choose_split(run, cast(Predictor, Proportional(0.5)), 1.0)
    assert choice is not None
    assert (choice.split, choice.devices) == ("colocated-2", 2)


def test_slow_drafters_are_told_the_split_that_is_forecast(tmp_path: Path) -> None:
    run = Run.open(play(tmp_path / "run", targets=2, drafters=1, forward_s=0.2, backward_s=0.25))
    timeline = Timeline.of(run)
    diagnosis = diagnose(timeline, RunForecast(timeline, run))
    assert diagnosis.primary is not None
    assert diagnosis.primary.cause == "drafter-too-slow"
    assert diagnosis.primary.remedy is not None
    assert diagnosis.primary.remedy.knobs == {"pipeline.split": "2-3"}
    assert diagnosis.primary.predicted_gain == pytest.approx(1.5, abs=0.15)  # from 4 batches a second to 10
    assert "pipeline.split=2-3 is forecast" in diagnosis.next_step
