"""The process of one tracker: JSON lines on stdin become its figures.

    {"run": DIR, "config": {path: value}}                         first
    {"step": N, "time_s": UNIX_S, "values": {name: number}}       then points
    {"end": STATUS}                                               last

When stdin ends without the last one, the trainer was killed, and the tracker is closed as a failure. What it
prints goes to the run's trackers/NAME.log. Imports no torch.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from dflash.trackers.tensorboard_files import TensorBoardFiles
from dflash.trackers.trackio_run import TrackioRun
from dflash.trackers.wandb_run import WandbRun


class Tracker(Protocol):
    """Where figures go."""

    def log(self, step: int, time_s: float, values: Mapping[str, float]) -> None:
        """Figures after `step` steps, at that Unix time."""

    def finish(self, status: str) -> None:
        """No more will come; write what is left. `status`: finished, stopped, failed."""


Open = Callable[[Path, Mapping[str, Any]], Tracker]
openers: dict[str, Open] = {"tensorboard": TensorBoardFiles, "wandb": WandbRun, "trackio": TrackioRun}


def track(name: str, lines: Iterable[str] | None = None) -> int:
    """Feed the tracker `name` with what comes on stdin; the exit code."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the trainer says when it is over, by closing the pipe
    messages = _messages(sys.stdin if lines is None else lines)
    first = next(messages, None)
    if first is None:
        return 0
    tracker = openers[name](Path(first["run"]), first["config"])
    status = "failed"
    for message in messages:
        if "end" in message:
            status = message["end"]
            break
        tracker.log(message["step"], message["time_s"], message["values"])
    tracker.finish(status)
    return 0


def _messages(lines: Iterable[str]) -> Iterator[Any]:
    for line in lines:
        try:
            yield json.loads(line)
        except ValueError:
            return  # torn: who wrote it was killed
