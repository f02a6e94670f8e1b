"""A wandb run, named as the run directory, with all knobs as its config.

`WANDB_PROJECT`, `WANDB_MODE=offline` and the like are wandb's own; its files lie in RUN/trackers/wandb.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

default_project = "dflash-tune"


class WandbRun:
    """One run at wandb."""

    def __init__(self, run: Path, config: Mapping[str, Any]) -> None:
        import wandb

        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", default_project),
            name=run.name,
            config=dict(config),
            dir=str(run / "trackers"),
        )

    def log(self, step: int, time_s: float, values: Mapping[str, float]) -> None:
        """See Tracker."""
        self._run.log({**values, "_timestamp": time_s}, step=step)

    def finish(self, status: str) -> None:
        """See Tracker."""
        self._run.finish(exit_code=1 if status == "failed" else 0)
