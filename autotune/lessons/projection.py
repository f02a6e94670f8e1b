"""What the recommended configuration would come to on more devices: a forecast from its own run.

For each larger number of devices the best split of the kind that ran (roles apart, or sharing devices), and
the best of the other kind where the forecast puts it clearly ahead. These are predictions, marked as such
wherever they are shown. Knows nothing of the trials beside that run.
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
clearly: Final = 1.05  # times as fast


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """A split over more devices."""

    split: str
    devices: int
    ratio: Interval  # to the same configuration as it ran, 90 %
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
    counts = _counts(run.config.device_count)
    splits = tuple(each for count in counts for each in _best_of(run, run.config, predictor, count))
    if not splits:
        return Projections(reason="no larger split is allowed with this window and token budget, or fits")
    return Projections(splits=splits)


def _counts(now: int) -> list[int]:
    """Twice as many devices, and as many as a usual machine has at most."""
    return sorted({count for count in (2 * now, usual_node) if count > now})


def _best_of(run: Run, config: TrainConfig, predictor: Predictor, devices: int) -> Iterator[Projection]:
    """The best split of the kind that ran, and of the other where it is clearly better."""
    now = config.split.colocated
    kinds = [list(_splits(config, devices, kind)) for kind in (now, not now)]
    best: Projection | None = None
    for choices in kinds:
        fitting = [choice for choice in choices if fits_devices(run, choice)]
        if not fitting:
            continue
        rates = predictor.rank(Setting.of(choice) for choice in fitting)
        told = _predict(predictor, config, fitting[max(range(len(fitting)), key=lambda i: rates[i])])
        if best is None or told.ratio.mid > clearly * best.ratio.mid:
            best = told
            yield told


def _predict(predictor: Predictor, now: TrainConfig, then: TrainConfig) -> Projection:
    told = predict_config(predictor, now, then)
    scale = told.ratio / told.tokens_per_s
    return Projection(
        split=then.pipeline.split,
        devices=then.device_count,
        ratio=Interval(told.ratio, told.low * scale, told.high * scale),
        limit=told.limit,
        doubts=tuple(doubt.text for doubt in told.doubts),
    )


def _splits(config: TrainConfig, devices: int, colocated: bool) -> Iterator[TrainConfig]:
    apart = [f"{targets}-{devices - targets}" for targets in range(1, devices)]
    for split in [f"colocated-{devices}"] if colocated else apart:
        try:
            yield config.replacing({"pipeline.split": split, "devices.gpus": 0})
        except DFlashError:
            continue
