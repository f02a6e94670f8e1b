"""The forecast of one run: its model fitted when somebody first asks, then kept for all who ask after.

Knows nothing of what is asked.
"""

from __future__ import annotations

from functools import cached_property

from profiler.forecast.observations import observe, observe_run
from profiler.forecast.predictor import Predictor
from profiler.run import Run
from profiler.timeline import Timeline


class RunForecast:
    """What changes would do to one run.

    `run`: what its directory knows beside the timeline (cores, links); without it the model goes without.
    """

    def __init__(self, timeline: Timeline, run: Run | None = None) -> None:
        self.timeline, self.run = timeline, run

    @cached_property
    def predictor(self) -> Predictor:
        """Fitted on the run. Raises RunError for one that does not serve."""
        if self.run is None:
            return Predictor([observe(self.timeline)])
        return Predictor([observe_run(self.run, self.timeline)])
