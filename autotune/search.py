"""A search in a directory: its conditions are checked, it is locked, what an earlier one left is put right.

A search can be stopped anywhere, by Ctrl-C or by SIGKILL, and goes on when it is started again on the
same directory with the same line: nothing finished is lost or run again. Knows nothing of how a
configuration is run (see runner.py) or of rendering.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from autotune.applying import sort_out
from autotune.default_searcher import default_searcher
from autotune.effort import Effort
from autotune.history import explored
from autotune.identity import Identity, identify, settle_identity
from autotune.leftovers import end_leftovers
from autotune.machine import Machine
from autotune.planning import configurations_left
from autotune.result import StudyResult, best_path, conclude, effort_path
from autotune.runner import Runner
from autotune.searcher import Searcher
from autotune.space import SearchSpace
from autotune.storage import TrialLog, network_filesystem, trial_dir
from autotune.study import Progress, ProgressEvent, Study
from autotune.study_lock import study_lock
from autotune.telemetry import FailureKind
from autotune.trial import TrialState
from dflash.contract.rundir import utc_now, write_json, write_text


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchPlan:
    """What to search, where to keep it, and how much to spend."""

    study_dir: Path
    space: SearchSpace
    machine: Machine
    effort: Effort = field(default_factory=Effort)
    searcher: Searcher = field(default_factory=default_searcher)


def search(plan: SearchPlan, runner: Runner, progress: Progress) -> StudyResult:
    """Search, or go on searching, and return what was found; best.toml is then in the study directory.

    Raises UsageError when another search holds the study or the study was made under other conditions;
    KeyboardInterrupt after the running trial was stopped and everything was stored.
    """
    plan = dataclasses.replace(plan, study_dir=plan.study_dir.resolve())
    identity = identify(plan.space, plan.machine, plan.effort.seconds)
    notice = _speaker(progress)
    with study_lock(plan.study_dir):
        identity = settle_identity(plan.study_dir, identity)
        write_json(effort_path(plan.study_dir), dataclasses.asdict(plan.effort))
        _warn_of_network(plan.study_dir, notice)
        for pid in end_leftovers(plan.study_dir / "trials"):
            notice(f"ended process {pid}, left over by an earlier search")
        log = TrialLog(plan.study_dir, plan.space, notice, identity.to_json())
        _mark_killed(log)
        study = Study(
            plan.space,
            plan.searcher,
            runner,
            effort=plan.effort,
            store=log,
            progress=progress,
            gpus=len(plan.machine.gpus),
        )
        _announce(plan, log, study, progress)
        study.run()
        return _finish(plan, identity, log)


def _speaker(progress: Progress) -> Callable[[str], None]:
    return lambda message: progress(ProgressEvent("notice", message))


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
                spent_s=_seen_for_s(trial_dir(log.root, trial.number)),
            )
        )


def _seen_for_s(directory: Path) -> float:
    """How long a trial that was killed had left signs of life: from its record to its last file."""
    times_s = [path.stat().st_mtime for path in directory.rglob("*") if path.is_file()]
    return round(max(times_s) - min(times_s), 3) if times_s else 0.0


def _finish(plan: SearchPlan, identity: Identity, log: TrialLog) -> StudyResult:
    result = conclude(plan.study_dir, identity, plan.space, log.trials, plan.effort, plan.searcher)
    text = result.best_config_toml()
    if text is None:
        best_path(plan.study_dir).unlink(missing_ok=True)  # of an earlier call, when it still seemed to run
    else:
        write_text(best_path(plan.study_dir), text)
    return result


def _announce(plan: SearchPlan, log: TrialLog, study: Study, progress: Progress) -> None:
    """Say what a study that is gone on with has, and what is left of its budgets."""
    if not log.trials:
        return
    history, effort = study.history, plan.effort
    tried, left = len(explored(history.trials)), configurations_left(history)
    parts = [f"going on with {plan.study_dir}: {tried} configurations tried, {left} left"]
    spent = history.spent_s
    if effort.minutes is not None:
        parts.append(f"{max(0.0, effort.minutes - spent / 60):.1f} of {effort.minutes:g} minutes left")
    if effort.gpu_hours is not None:
        hours = spent * len(plan.machine.gpus) / 3600
        parts.append(f"{max(0.0, effort.gpu_hours - hours):.2f} of {effort.gpu_hours:g} GPU-hours left")
    progress(ProgressEvent("resumed", ", ".join(parts), left=left))
    _, strays = sort_out(log.trials, plan.space)
    if strays:
        reasons = Counter(stray.reason for stray in strays)
        told = "; ".join(f"{count}: {reason}" for reason, count in reasons.most_common())
        message = f"the space has changed: {len(strays)} earlier trials do not apply ({told})"
        progress(ProgressEvent("notice", message))


def _warn_of_network(study_dir: Path, notice: Callable[[str], None]) -> None:
    kind = network_filesystem(study_dir)
    if kind is not None:
        notice(f"{study_dir} lies on a network filesystem ({kind}); only on a local disk is a study safe")
