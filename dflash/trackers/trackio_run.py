"""A trackio run, named as the run directory, with all knobs as its config. Lies where trackio keeps runs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

default_project = "dflash-tune"


class TrackioRun:
    """One run of trackio."""

    def __init__(self, run: Path, config: Mapping[str, Any]) -> None:
        import trackio

        self._trackio = trackio
        trackio.init(
            project=os.environ.get("TRACKIO_PROJECT", default_project), name=run.name, config=dict(config)
        )

    def log(self, step: int, time_s: float, values: Mapping[str, float]) -> None:  # noqa: ARG002 - its own clock
        """See Tracker."""
        self._trackio.log(dict(values), step=step)

    def finish(self, status: str) -> None:  # noqa: ARG002 - it knows one end only
        """See Tracker."""
        self._trackio.finish()
