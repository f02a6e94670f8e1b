"""A search in a directory: its conditions are checked, it is locked, what an earlier one left is put right.

A search can be stopped anywhere, by Ctrl-C or by SIGKILL, and goes on when it is started again on the
same directory with the same line: nothing finished is lost or run again. Knows nothing of how a
configuration is run (see runner.py) or of rendering.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path

from autotune.agenda import Agenda
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
from autotune.storage import TrialLog, network_filesystem, study_lock
from autotune.study import Progress, ProgressEvent, Study
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
    searcher: Searcher = field(default_factory=Agenda)


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
        study = Study(
            plan.space,
            plan.searcher,
            runner,
            effort=plan.effort,
            store=log,
            progress=progress,
            gpus=len(plan.machine.gpus),
        )
        _announce(plan, study, progress)
        study.run()
        return _finish(plan, identity, log)


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


def _announce(plan: SearchPlan, study: Study, progress: Progress) -> None:
    history = study.history
    if history.trials:
        tried, left = len(explored(history.trials)), configurations_left(history)
        message = f"going on with {plan.study_dir}: {tried} configurations tried, {left} left"
        progress(ProgressEvent("resumed", message, left=left))


def _warn_of_network(study_dir: Path, progress: Progress) -> None:
    kind = network_filesystem(study_dir)
    if kind is not None:
        message = f"{study_dir} lies on a network filesystem ({kind}); only on a local disk is a study safe"
        progress(ProgressEvent("notice", message))
