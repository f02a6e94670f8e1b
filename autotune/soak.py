"""The last step of a search: what would be recommended runs once on the documents that need the most memory.

A trial of seconds has met few mixes of lengths; a run of days meets all. Who does not get through with memory
to spare is not recommended, and the next one is tried. Pure functions; knows nothing of how it is run.
"""

from __future__ import annotations

from autotune.history import History
from autotune.searcher import Task
from autotune.telemetry import Telemetry
from autotune.trial import Trial

limit_share = 0.95  # of what there is, at most
most_soaks = 4  # of configurations, before the search leaves it at that


def plan_soak(history: History, recommended: Trial | None) -> Task | None:
    """The soak that is missing before `recommended` may be recommended; None where none is."""
    soaks = [trial for trial in history.trials if trial.soak and trial.state.is_over]
    if recommended is None or len({trial.repeat_of for trial in soaks}) >= most_soaks:
        return None
    if any(trial.repeat_of == recommended.number for trial in soaks):
        return None
    return Task(
        values=recommended.values,
        why=f"trial {recommended.number} over the documents that need the most memory",
        repeat_of=recommended.number,
        soak=True,
    )


def find_tightness(measured: Telemetry) -> str | None:
    """Why a configuration with this soak must not be recommended; None: there is memory to spare."""
    for place, figures in measured.memory.items():
        limit = figures.limit_bytes
        if limit is not None and figures.peak_bytes > limit_share * limit:
            return (
                f"the documents that need the most memory take {figures.peak_bytes / limit:.1%} of that of "
                f"{place} ({figures.peak_bytes / 1e9:.2f} of {limit / 1e9:.2f} GB), over {limit_share:.0%}"
            )
    return None
