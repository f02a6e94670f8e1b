"""The trials so far, and what can be read from them whatever the search: what counts as tried, who contends.

Pure functions; knows nothing of what comes next.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from autotune.effort import Effort
from autotune.space import Space
from autotune.telemetry import FailureKind
from autotune.trial import Trial

stretches = 3  # times that a run with too few windows is made longer, at most


@dataclass(frozen=True, slots=True)
class History:
    """All that a searcher is told. Every trial lies in the space; they are ordered by number."""

    space: Space
    trials: tuple[Trial, ...]
    effort: Effort
    stray_s: float = 0.0  # wall time of trials of an earlier space: it is spent all the same

    @property
    def spent_s(self) -> float:
        """Wall time that went into trials, finished or not, over all invocations."""
        return self.stray_s + sum(trial.spent_s or 0.0 for trial in self.trials)


def explored(trials: Sequence[Trial]) -> tuple[Trial, ...]:
    """The trials that count as configurations tried: over, not repeats, not run again in a better way."""
    replaced = {trial.retry_of for trial in trials}
    return tuple(t for t in trials if t.state.is_over and t.repeat_of is None and t.number not in replaced)


def group_runs(trials: Sequence[Trial]) -> dict[int, tuple[Trial, ...]]:
    """{number: the trial and its repeats, as far as they are over} of all configurations explored."""
    groups = {trial.number: [trial] for trial in explored(trials)}
    for trial in trials:
        if trial.repeat_of in groups and trial.state.is_over:
            groups[trial.repeat_of].append(trial)
    return {number: tuple(runs) for number, runs in groups.items()}


def dependable_runs(trials: Sequence[Trial]) -> dict[int, tuple[Trial, ...]]:
    """The groups whose every run is finished and healthy.

    An abandoned repeat is not held against a configuration that has run before: the search was killed. Nor is
    a run again that was too short to be measured, as long as it may be made longer or had a process of its
    own, nor a soak that went well: they say nothing.
    """
    return {number: runs for number, runs in group_runs(trials).items() if _is_dependable(runs)}


def _is_dependable(runs: Sequence[Trial]) -> bool:
    first, *further = runs
    short = sum(may_be_longer(run) for run in further)
    return (
        first.is_candidate
        and short <= stretches
        and all(
            run.is_candidate or run.failure is FailureKind.abandoned or _says_nothing(run) for run in further
        )
    )


def _says_nothing(run: Trial) -> bool:
    if run.failure is FailureKind.too_short and (run.fresh or not run.soak):
        return True
    return run.soak and run.measurement is not None and run.unhealthy is None


def may_be_longer(run: Trial) -> bool:
    """Whether it was too short to be measured, where more time would have helped."""
    return run.failure is FailureKind.too_short and not run.fresh and not run.soak


def find_start(space: Space, trials: Sequence[Trial]) -> Trial | None:
    """The trial of the starting configuration, once it is over."""
    start = space.point(space.baseline)
    return next((t for t in explored(trials) if space.point(t.values) == start), None)


def find_contenders(space: Space, trials: Sequence[Trial]) -> tuple[Trial, ...]:
    """The two fastest and the starting configuration: those between which the result is decided.

    The starting configuration is among them because the gain over it is what the result claims.
    """
    sound = [runs[0] for runs in dependable_runs(trials).values()]
    chosen: list[Trial] = []
    for _ in range(2):
        best = find_incumbent(trial for trial in sound if trial not in chosen)
        chosen += [best] if best else []
    start = find_start(space, trials)
    if start is not None and start in sound and start not in chosen:
        chosen.append(start)
    return tuple(chosen)


def find_incumbent(trials: Iterable[Trial]) -> Trial | None:
    """The fastest healthy trial; the earliest of equals."""
    candidates = [trial for trial in trials if trial.is_candidate]
    return max(candidates, key=lambda trial: (trial.score, -trial.number), default=None)
