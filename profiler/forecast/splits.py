"""The split that a run should have, over the devices that there are: moved, added or shared ones.

The closed form ranks the splits of each number of devices, and the first of them are played; the fewest
devices that bring enough are chosen. Knows nothing of why another split is wanted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from dflash.contract.config import TrainConfig
from dflash.contract.errors import DFlashError
from profiler.ceilings import used_gpus, visible_alike
from profiler.forecast.memory import fits_devices
from profiler.forecast.predictor import Predictor
from profiler.forecast.setting import Setting
from profiler.run import Run

most_added: Final = 2  # times the devices in use, where devices are logical and cost nothing
nearly_enough: Final = 0.85  # of the gain that is wanted: then fewer devices count
worth_changing: Final = 0.08


@dataclass(frozen=True, slots=True)
class SplitChoice:
    """A split that is faster than the run's own."""

    split: str
    devices: int
    gain: float  # relative to now


def choose_split(run: Run, predictor: Predictor, enough: float) -> SplitChoice | None:
    """The split with fewest devices that brings `enough` (relative to now), else the best.

    None where no other is worth a change, or where targets and drafters have the same devices now.
    """
    config = run.config
    if config is None or config.split.colocated:
        return None
    choices = [c for c in _candidates(config, devices_there(run, config)) if fits_devices(run, c)]
    ranked = zip(predictor.rank(Setting.of(choice) for choice in choices), choices, strict=True)
    best: dict[tuple[int, bool], TrainConfig] = {}  # by number of devices, and whether roles share them
    for _, choice in sorted(ranked, key=lambda pair: -pair[0]):
        best.setdefault((choice.device_count, choice.split.colocated), choice)
    told = [
        SplitChoice(best[key].pipeline.split, key[0], predictor.predict(Setting.of(best[key])).ratio - 1)
        for key in sorted(best)  # few devices first, and roles apart before roles together
    ]
    wanted = min(enough, max((choice.gain for choice in told), default=0.0))
    if wanted < worth_changing:
        return None
    return next(choice for choice in told if choice.gain >= nearly_enough * wanted)


def devices_there(run: Run, config: TrainConfig) -> int:
    """Devices that the run could have: its own, and others of their kind that its command could see."""
    if config.devices.gpus:  # the user's own limit
        return config.device_count
    if run.manifest.get("emulated"):
        return most_added * config.device_count
    used = used_gpus(run.manifest)
    return max([config.device_count, *(visible_alike(run, str(device.get("model"))) for device in used)])


def _candidates(config: TrainConfig, devices: int) -> Iterator[TrainConfig]:
    """Configurations with every other split that is allowed over at most that many devices."""
    apart = [f"{targets}-{count - targets}" for count in range(2, devices + 1) for targets in range(1, count)]
    shared = [f"colocated-{count}" for count in range(1, devices + 1)]
    for split in [*apart, *shared]:
        if split != config.pipeline.split:
            try:
                yield config.replacing({"pipeline.split": split})
            except DFlashError:
                continue
