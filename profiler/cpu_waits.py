"""How long the threads of a stage stood ready to run and had no CPU: time that is no work of theirs.

A crowded machine stretches whatever it runs. Knows nothing of causes.
"""

from __future__ import annotations

from profiler.capacity import StageLoad
from profiler.timeline import Timeline


def cpu_wait(timeline: Timeline, load: StageLoad) -> float | None:
    """Share of a stage's time, at most that of its work; None where it was not sampled.

    Nothing where the GPU timed the work: that is how long the device took, whatever the thread waited for.
    """
    if (timeline.service.loc[timeline.service["stage"] == load.stage, "clock"] == "gpu").any():
        return 0.0
    own = timeline.threads.loc[timeline.threads["stage"] == load.stage, "tid"]
    waits = timeline.gil.threads.loc[timeline.gil.threads["tid"].isin(own), "cpu_wait_share"].astype(float)
    return min(float(waits.mean()), load.busy) if waits.notna().any() else None
