"""A run looked at once: its timeline, forecast and diagnosis, for everybody who shows them.

Reading a long run and fitting its model take seconds, so that each is done once. Knows nothing of showing.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from profiler.capacity import measure_loads
from profiler.diagnosis import diagnose
from profiler.finding import Diagnosis
from profiler.forecast.limit import measure_limit
from profiler.forecast.run_forecast import RunForecast
from profiler.run import Run
from profiler.timeline import Timeline


@dataclass(frozen=True, eq=False, slots=True)
class Examination:
    """A run and what was found in it."""

    run: Run
    timeline: Timeline
    forecast: RunForecast
    diagnosis: Diagnosis


def examine(run_path: Path, ceilings: Path | None = None) -> Examination:
    """Read and diagnose the run at `run_path`. Raises RunError for what is not a run of ours.

    `ceilings`: the file of what this machine's GPUs can do at best.
    """
    return examine_run(Run.open(run_path), ceilings)


def examine_run(run: Run, ceilings: Path | None = None) -> Examination:
    """The same of a run that was read already."""
    timeline = Timeline.of(run)
    forecast = RunForecast(timeline, run)
    limit = measure_limit(run, timeline, measure_loads(timeline), ceilings)
    return Examination(run, timeline, forecast, diagnose(timeline, forecast, limit))
