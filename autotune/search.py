"""The search: plan the next run, make it, store what came of it, until the effort is spent.

A search can be stopped anywhere, by Ctrl-C or by SIGKILL, and goes on when it is started again on the
same directory with the same line: nothing finished is lost or run again. Knows nothing of how a
configuration is run (see runner.py) or of rendering.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from autotune.agenda import Effort, Task, explored, find_start, plan_next
from autotune.health import find_illness
from autotune.identity import Identity, identify, settle_identity
from autotune.leftovers import end_leftovers
from autotune.machine import Machine
from autotune.result import StudyResult, best_path, conclude, effort_path
from autotune.runner import Runner
from autotune.space import SearchSpace
from autotune.storage import TrialLog, network_filesystem, study_lock, trial_dir
from autotune.trial import Failed, FailureKind, Measurement, Outcome, Trial, TrialState
from dflash.contract.config import TrainConfig
from dflash.contract.rundir import utc_now, write_json, write_text


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchPlan:
    """What to search, where to keep it, and how much to spend."""

    study_dir: Path
    space: SearchSpace
    machine: Machine
    effort: Effort = field(default_factory=Effort)


@dataclass(frozen=True, slots=True)
class ProgressEvent:
    """Something a user would want to see while a search runs."""

    kind: str  # notice | resumed | started | ended
    message: str
    trial: Trial | None = None
    left: int | None = None  # configurations still to try, at most


Progress = Callable[[ProgressEvent], None]


def search(plan: SearchPlan, runner: Runner, progress: Progress) -> StudyResult:
    """Search, or go on searching, and return what was found; best.toml is then in the study directory.

    Raises UsageError when another search holds the study or the study was made under other conditions;
    KeyboardInterrupt after the running trial was stopped and everything was stored.
    """
    plan = dataclasses.replace(plan, study_dir=plan.study_dir.resolve())
    identity = identify(plan.space, plan.machine, plan.effort.seconds)
    with study_lock(plan.study_dir):
        identity = settle_identity(plan.study_dir, identity)
        write_json(effort_path(plan.study_dir), dataclasses.asdict(plan.effort))
        _warn_of_network(plan.study_dir, progress)
        for pid in end_leftovers(plan.study_dir / "trials"):
            progress(ProgressEvent("notice", f"ended process {pid}, left over by an earlier search"))
        log = TrialLog(plan.study_dir, plan.space)
        _mark_killed(log)
        _announce(plan, log, progress)
        while (task := plan_next(plan.space, log.trials, plan.effort)) is not None:
            _carry_out(task, plan, log, runner, progress)
        return _finish(plan, identity, log)


def trial_config(space: SearchSpace, task: Task) -> TrainConfig:
    """The configuration that a trial runs: the task's values, for the task's time, from the first step."""
    return space.config(task.values).replacing(
        {
            "run.max_seconds": task.seconds,
            "run.max_steps": 0,
            "run.resume": "",
            "run.checkpoint_every": -1,
        }
    )


def judge(trial: Trial, outcome: Outcome, reference: Sequence[float | None]) -> Trial:
    """The trial with its outcome: finished (healthy or not) or failed, always for a stated reason."""
    over = trial.replacing(ended_utc=utc_now())
    if isinstance(outcome, Failed):
        return over.replacing(state=TrialState.failed, failure=outcome.kind, reason=outcome.reason)
    nonsense = _find_nonsense(outcome)
    if nonsense is not None:
        return over.replacing(state=TrialState.failed, failure=FailureKind.no_measurement, reason=nonsense)
    return over.replacing(
        state=TrialState.finished, measurement=outcome, unhealthy=find_illness(outcome, reference)
    )


def _find_nonsense(measured: Measurement) -> str | None:
    """Why the figures cannot be a measurement: they would crash, or win, where they are compared."""
    if measured.steps <= 0:
        return f"no optimizer step was taken (a throughput of {measured.tokens_per_s} was given)"
    figures = (measured.tokens_per_s, measured.low, measured.high)
    if not all(math.isfinite(figure) and figure > 0 for figure in figures):
        return f"the throughput is {measured.tokens_per_s} ({measured.low} to {measured.high})"
    return None


def _carry_out(task: Task, plan: SearchPlan, log: TrialLog, runner: Runner, progress: Progress) -> None:
    number = log.next_number
    run_path = trial_dir(plan.study_dir, number) / "run"
    trial = Trial(
        number=number,
        values=dict(task.values),
        why=task.why,
        run_path=str(run_path.relative_to(plan.study_dir)),
        seconds=task.seconds,
        started_utc=utc_now(),
        repeat_of=task.repeat_of,
        retry_of=task.retry_of,
    )
    try:
        log.save(trial)
        progress(ProgressEvent("started", task.why, trial, _left(plan, log)))
        outcome = runner.run(trial_config(plan.space, task), run_path)
    except KeyboardInterrupt:
        log.save(
            trial.replacing(state=TrialState.interrupted, ended_utc=utc_now(), reason="stopped by the user")
        )
        raise
    trial = judge(trial, outcome, _reference_losses(plan.space, log.trials))
    log.save(trial)
    progress(ProgressEvent("ended", trial.reason or trial.unhealthy or "", trial, _left(plan, log)))


def _reference_losses(space: SearchSpace, trials: Sequence[Trial]) -> tuple[float | None, ...]:
    start = find_start(space, trials)
    return start.measurement.losses if start and start.is_candidate and start.measurement else ()


def _mark_killed(log: TrialLog) -> None:
    """A trial that is still called running died with its search. The second such death is its own fault."""
    numbered = {trial.number: trial for trial in log.trials}
    for trial in log.trials:
        if trial.state is not TrialState.running:
            continue
        before = trial
        while before.retry_of is not None and numbered[before.retry_of].state is not TrialState.killed:
            before = numbered[before.retry_of]
        killed_before = before.retry_of is not None
        log.save(
            trial.replacing(
                state=TrialState.failed if killed_before else TrialState.killed,
                failure=FailureKind.abandoned if killed_before else None,
                reason="the search died during it" + (", twice" if killed_before else ""),
                ended_utc=utc_now(),
            )
        )


def _finish(plan: SearchPlan, identity: Identity, log: TrialLog) -> StudyResult:
    result = conclude(plan.study_dir, identity, plan.space, log.trials, plan.effort)
    text = result.best_config_toml()
    if text is not None:
        write_text(best_path(plan.study_dir), text)
    return result


def _announce(plan: SearchPlan, log: TrialLog, progress: Progress) -> None:
    if log.trials:
        tried = len(explored(log.trials))
        message = f"going on with {plan.study_dir}: {tried} configurations tried, {_left(plan, log)} left"
        progress(ProgressEvent("resumed", message, left=_left(plan, log)))


def _left(plan: SearchPlan, log: TrialLog) -> int:
    return max(0, min(plan.effort.trials, plan.space.size) - len(explored(log.trials)))


def _warn_of_network(study_dir: Path, progress: Progress) -> None:
    kind = network_filesystem(study_dir)
    if kind is not None:
        message = f"{study_dir} lies on a network filesystem ({kind}); only on a local disk is a study safe"
        progress(ProgressEvent("notice", message))
