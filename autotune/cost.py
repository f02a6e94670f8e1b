"""What a search costs at most: runs, minutes, GPU-hours, before anything runs.

The time around training (start, model, compilation) is what a study's own trials took, else an assumption
that is told as one. Knows nothing of what is searched.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from autotune.effort import Effort

contenders: Final = 3  # the two fastest and the start: run again, and at the end in fresh processes
between: Final = 2  # of new configurations between two runs of a contender again
assumed_start_s: Final = {True: 10.0, False: 90.0}  # on logical devices; on GPUs, first compilations included


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """An upper bound, as searches stop when they are sure."""

    trials: int  # configurations
    repeats: int  # further runs: of contenders, in the finals, and over what needs most memory
    training_s: float  # of a run
    start_s: float  # of a run, around training
    start_from: str  # where that is known from
    minutes: float
    gpus: int
    gpu_hours: float
    limited_by: str  # what ends the search at the latest: trials, the space, minutes, GPU-hours

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def price(effort: Effort, size: int, gpus: int, *, emulated: bool, study_dir: Path | None = None) -> Cost:
    """The cost of a search over `size` configurations, on a machine whose `gpus` GPUs are all held for it.

    Raises UsageError where GPU-hours are a limit and there are no GPUs.
    """
    effort.check_countable(gpus)
    trials = min(effort.trials, size)
    repeats = 2 * effort.repeats * min(contenders, trials) + trials // between + 1
    measured = [] if study_dir is None else measured_starts_s(study_dir)
    start_s = median(measured) if measured else assumed_start_s[emulated]
    known = f"measured in {len(measured)} trials of {study_dir}" if measured else "assumed, none was measured"
    minutes = (trials + repeats) * (effort.seconds + start_s) / 60
    limits = {"trials" if trials == effort.trials else "the space": minutes}
    if effort.minutes is not None:
        limits["minutes"] = effort.minutes
    if effort.gpu_hours is not None:
        limits["GPU-hours"] = 60 * effort.gpu_hours / gpus
    limited_by = min(limits, key=lambda name: limits[name])
    return Cost(
        trials=trials,
        repeats=repeats,
        training_s=effort.seconds,
        start_s=round(start_s, 1),
        start_from=known,
        minutes=limits[limited_by],
        gpus=gpus,
        gpu_hours=limits[limited_by] * gpus / 60,
        limited_by=limited_by,
    )


def measured_starts_s(study_dir: Path) -> list[float]:
    """What the trials of a study took beyond their training. Read as files: quick, and also while it runs."""
    found = []
    for path in sorted((study_dir / "trials").glob("*/trial.json")):
        try:
            trial = json.loads(path.read_text(encoding="utf-8"))
            if trial["state"] == "finished":
                found.append(max(float(trial["spent_s"]) - float(trial["seconds"]), 0.0))
        except (OSError, ValueError, KeyError, TypeError):
            continue  # half a record, or one of another version: the others tell
    return found
