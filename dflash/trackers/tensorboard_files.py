"""TensorBoard's event files, written with its own writer: `tensorboard --logdir RUN/trackers`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


class TensorBoardFiles:
    """One run's files in RUN/trackers/tensorboard."""

    def __init__(self, run: Path, config: Mapping[str, Any]) -> None:  # noqa: ARG002 - it keeps no settings
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._writer = EventFileWriter(str(run / "trackers" / "tensorboard"), flush_secs=5)

    def log(self, step: int, time_s: float, values: Mapping[str, float]) -> None:
        """See Tracker."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        scalars = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._writer.add_event(Event(wall_time=time_s, step=step, summary=Summary(value=scalars)))

    def finish(self, status: str) -> None:  # noqa: ARG002 - it knows no end
        """See Tracker."""
        self._writer.close()
