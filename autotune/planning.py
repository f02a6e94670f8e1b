"""The next run of a study: what any search does, whoever proposes; else what the searcher proposes.

What was cut off is run again, a starting configuration or a repeat with too few windows gets more time, a
search that cannot succeed gives up, and budgets hold. Everything follows from the trials alone. Pure
functions; knows nothing of running or storing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autotune.finals import plan_final
from autotune.history import History, dependable_runs, explored, find_start, may_be_longer, stretches
from autotune.recommendation import finals_since_last_new, recommend
from autotune.searcher import Doubting, Searcher, Stop, Task
from autotune.soak import plan_soak
from autotune.telemetry import FailureKind
from autotune.trial import Trial, TrialState
from dflash.contract.errors import DFlashError

stretch_factor = 2.5  # of the trial length, when the starting configuration or a repeat shows too few windows
hopeless_failures = 3  # the first trials, all failed for one reason, before the search gives up


def plan_next(
    searcher: Searcher, history: History, gpus: int = 0, *, reuses: bool = False, soaks: bool = False
) -> Task | Stop:
    """The next run, with its training time, or why there is none. `gpus`: those a GPU-hour is counted over.

    `reuses`: runs share processes, so finalists are run again in fresh ones. `soaks`: what would be
    recommended is at last run at its hungriest. Raises DFlashError when the searcher
    proposes what the space does not hold.
    """
    planned = _plan(searcher, history, gpus, reuses=reuses, soaks=soaks)
    if isinstance(planned, Stop) and planned.gap_probability is None and isinstance(searcher, Doubting):
        return replace(planned, gap_probability=searcher.gap_chance(history))
    return planned


def _plan(searcher: Searcher, history: History, gpus: int, *, reuses: bool, soaks: bool) -> Task | Stop:
    seconds = history.effort.seconds * stretch_factor ** min(stretches, len(_too_short_starts(history)))
    spent = _find_spent_budget(history, gpus)
    if spent is not None:
        return spent
    found = (
        _rerun(history.trials)
        or _longer_start(history, seconds)
        or _longer_repeat(history.trials)
        or _give_up(history)
    )
    if found is None:
        found = searcher.next(history)
    if isinstance(found, Task) and found.repeat_of is None and found.retry_of is None:
        _check(found, history)
        if len(explored(history.trials)) >= history.effort.trials:
            found = Stop("the effort is spent")
    if isinstance(found, Task) and _reopens(found, history):
        found = Stop("the finalists were compared")
    if isinstance(found, Stop):
        chosen = recommend(searcher, history) if reuses or soaks else None
        last = plan_final(history, chosen) if reuses else None
        last = last or (plan_soak(history, chosen) if soaks else None)
        return found if last is None else replace(last, seconds=seconds)
    return found if found.seconds is not None else replace(found, seconds=seconds)


def describe_progress(history: History, planned: Task | Stop) -> str:
    """How far the search is, and why it stops there if it does."""
    tried = explored(history.trials)
    repeats = sum(trial.repeat_of is not None and trial.state.is_over for trial in history.trials)
    parts = [f"{len(tried)} of {min(history.effort.trials, history.space.size)} configurations tried"]
    parts += [f"{repeats} repeats"] if repeats else []
    ending = planned.reason if isinstance(planned, Stop) else "not done yet"
    return ", ".join([*parts, ending] if ending != "the effort is spent" else parts)


def configurations_left(history: History) -> int:
    """Configurations still to try, at most."""
    return max(0, min(history.effort.trials, history.space.size) - len(explored(history.trials)))


def _find_spent_budget(history: History, gpus: int) -> Stop | None:
    seconds, effort = history.spent_s, history.effort
    if effort.minutes is not None and seconds >= 60 * effort.minutes:
        return Stop(f"the {effort.minutes:g} minutes are spent")
    if effort.gpu_hours is not None and seconds * gpus >= 3600 * effort.gpu_hours:
        return Stop(f"the {effort.gpu_hours:g} GPU-hours are spent")
    return None


def _reopens(task: Task, history: History) -> bool:
    """A contender again, though the finals have begun: their readings must not start it all over."""
    again = task.repeat_of is not None and task.retry_of is None
    return again and bool(finals_since_last_new(history.trials))


def _check(task: Task, history: History) -> None:
    space = history.space
    right = set(task.values) == set(space.paths) and all(
        task.values[axis.path] in axis.choices for axis in space.dimensions
    )
    why_not = space.why_not(task.values) if right else "it does not lie in the space"
    if why_not is not None:
        raise DFlashError(
            "the searcher proposed a configuration that cannot run", found=dict(task.values), where=why_not
        )


def _rerun(trials: Sequence[Trial]) -> Task | None:
    """A run that says nothing of its configuration is made again."""
    numbered = {trial.number: trial for trial in trials}
    replaced = {trial.retry_of for trial in trials}
    for trial in trials:
        if trial.number not in replaced and _says_nothing(trial, numbered.get(_none_is(trial.retry_of))):
            word = trial.failure if trial.state is TrialState.failed else trial.state
            return Task(
                values=trial.values,
                why=f"trial {trial.number}: {word}",
                seconds=trial.seconds,
                repeat_of=trial.repeat_of,
                retry_of=trial.number,
                fresh=trial.fresh,
                soak=trial.soak,
                beside=trial.beside,
                predicted=trial.predicted,
            )
    return None


def _none_is(number: int | None) -> int:
    return -1 if number is None else number


def _says_nothing(trial: Trial, before: Trial | None) -> bool:
    """Whether it was cut off, or lost its GPU, for which it is blamed only the second time."""
    if trial.state in (TrialState.killed, TrialState.interrupted):
        return True
    lost = FailureKind.lost_gpu
    return trial.failure is lost and (before is None or before.failure is not lost)


def _longer_start(history: History, seconds: float) -> Task | None:
    start = find_start(history.space, history.trials)
    if start is None or start.failure is not FailureKind.too_short:
        return None
    if len(_too_short_starts(history)) > stretches:
        return None
    return Task(
        values=start.values,
        why=f"{start.seconds:g} s of training were too short",
        seconds=seconds,
        retry_of=start.number,
    )


def _longer_repeat(trials: Sequence[Trial]) -> Task | None:
    """A repeat in place that was too short to be measured gets more time, as the start does."""
    replaced = {trial.retry_of for trial in trials}
    for runs in dependable_runs(trials).values():
        for run in runs[1:]:
            if may_be_longer(run) and run.number not in replaced:
                return Task(
                    values=run.values,
                    why=f"{run.seconds:g} s of training were too short for trial {run.repeat_of} again",
                    seconds=run.seconds * stretch_factor,
                    repeat_of=run.repeat_of,
                    retry_of=run.number,
                    beside=run.beside,
                    predicted=run.predicted,
                )
    return None


def _too_short_starts(history: History) -> list[Trial]:
    space = history.space
    start = space.point(space.baseline)
    return [
        trial
        for trial in history.trials
        if trial.failure is FailureKind.too_short
        and trial.repeat_of is None
        and space.point(trial.values) == start
    ]


def _give_up(history: History) -> Stop | None:
    """The first trials all failed alike. Memory is no such reason: smaller configurations may fit."""
    tried = explored(history.trials)
    complaints = {trial.complaint for trial in tried[:hopeless_failures]}
    failed = [trial for trial in tried if trial.state is TrialState.failed]
    alike = len(failed) == len(tried) >= hopeless_failures and len(complaints) == 1
    if not alike or tried[0].failure is FailureKind.out_of_memory:
        return None
    return Stop(f"given up: the first {hopeless_failures} failed for the same reason")
