"""What the recommended configuration would come to on more devices: a forecast from its own run.

For each larger number of devices the split that the forecast ranks first. These are predictions, marked as
such wherever they are shown. Knows nothing of the trials beside that run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from autotune.comparison import Interval
from dflash.contract.config import TrainConfig
from dflash.contract.errors import DFlashError
from profiler.forecast.memory import fits_devices
from profiler.forecast.observations import observe_run
from profiler.forecast.predictor import Predictor
from profiler.forecast.setting import Setting
from profiler.forecast.what_if import predict_config
from profiler.run import Run
from profiler.timeline import Timeline

usual_node: Final = 8  # GPUs of the largest machine that one process usually has


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """A split over more devices."""

    split: str
    devices: int
    tokens_per_s: Interval
    ratio: float  # to the same configuration as it ran
    limit: str  # what would set the pace
    doubts: tuple[str, ...]  # how far it goes beyond what was seen


@dataclass(frozen=True, slots=True, kw_only=True)
class Projections:
    """Of each number of devices, few first; none for the stated reason."""

    splits: tuple[Projection, ...] = ()
    reason: str | None = None


def project(run_path: Path) -> Projections:
    """What the run at `run_path` would come to on more devices than it had. Takes seconds; never raises."""
    try:
        run = Run.open(run_path)
        if run.config is None:
            return Projections(reason="the run has no configuration of ours")
        predictor = Predictor([observe_run(run, Timeline.of(run))])
    except DFlashError as error:
        return Projections(reason=error.what)
    found = [_best_of(run, run.config, predictor, count) for count in _counts(run.config.device_count)]
    splits = tuple(each for each in found if each is not None)
    if not splits:
        return Projections(reason="no larger split is allowed with this window and token budget")
    return Projections(splits=splits)


def _counts(now: int) -> list[int]:
    """Twice as many devices, and as many as a usual machine has at most."""
    return sorted({count for count in (2 * now, usual_node) if count > now})


def _best_of(run: Run, config: TrainConfig, predictor: Predictor, devices: int) -> Projection | None:
    choices = [choice for choice in _splits(config, devices) if fits_devices(run, choice)]
    if not choices:
        return None
    rates = predictor.rank(Setting.of(choice) for choice in choices)
    best = choices[max(range(len(choices)), key=lambda i: rates[i])]
    told = predict_config(predictor, config, best)
    return Projection(
        split=best.pipeline.split,
        devices=devices,
        tokens_per_s=Interval(told.tokens_per_s, told.low, told.high),
        ratio=told.ratio,
        limit=told.limit,
        doubts=tuple(doubt.text for doubt in told.doubts),
    )


def _splits(config: TrainConfig, devices: int) -> Iterator[TrainConfig]:
    apart = [f"{targets}-{devices - targets}" for targets in range(1, devices)]
    for split in [*apart, f"colocated-{devices}"]:
        try:
            yield config.replacing({"pipeline.split": split, "devices.gpus": 0})
        except DFlashError:
            continue
