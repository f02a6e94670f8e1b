"""What a study teaches beyond its recommendation: knobs, predictions, trade-offs, failures, larger machines.

Everything comes from the stored trials and, for larger machines, from the recommended run's own forecast.
Takes seconds. Knows nothing of rendering.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.comparison import Interval
from autotune.history import group_runs
from autotune.lessons.advice import advise
from autotune.lessons.knob_worth import KnobWorths, value_knobs
from autotune.lessons.prediction_record import PredictionRecord, judge_predictions
from autotune.lessons.projection import Projections, project
from autotune.lessons.tradeoffs import TradeOffs, weigh
from autotune.lessons.training_length import TrainingLength, read_length
from autotune.result import StudyResult
from autotune.space import RuledOut
from autotune.trial import Trial, TrialState


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialGroup:
    """Trials to which the same happened."""

    reason: str
    trials: tuple[int, ...]
    example: str  # the whole of what the first one said

    @property
    def count(self) -> int:
        return len(self.trials)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lessons:
    """All of it. Groups are ordered, most common first."""

    length: TrainingLength
    knobs: KnobWorths
    predictions: PredictionRecord
    trade_offs: TradeOffs
    failed: tuple[TrialGroup, ...]
    excluded: tuple[TrialGroup, ...]  # finished, and unhealthy
    stopped_early: tuple[TrialGroup, ...]
    not_applying: tuple[TrialGroup, ...]  # of an earlier space of the study
    ruled_out: tuple[RuledOut, ...]  # by arithmetic, before anything ran
    projections: Projections
    next_steps: tuple[str, ...]  # where nothing can be recommended

    def to_json(self) -> dict[str, Any]:
        """Strict JSON of everything above."""
        return {name: _plain(getattr(self, name)) for name in (f.name for f in dataclasses.fields(self))}


def learn(result: StudyResult, *, forecast: bool = True) -> Lessons:
    """What `result` teaches. Without `forecast` no larger machine is looked at."""
    space, trials = result.space, result.trials
    ran = [result.run_path(trial) for trial in trials if trial.measurement is not None]
    return Lessons(
        length=read_length(result.identity.base().run.epochs, ran),
        knobs=value_knobs(space, trials, result.fastest, result.effort.tolerance),
        predictions=judge_predictions(trials),
        trade_offs=weigh(result.standings, trials, emulated=result.identity.emulated),
        failed=group_failed(trials),
        excluded=_group(trials, lambda trial: trial.unhealthy),
        stopped_early=_group(
            trials, lambda trial: trial.measurement.stopped_early if trial.measurement else None
        ),
        not_applying=_group_by({stray.trial.number: (stray.trial, stray.reason) for stray in result.strays}),
        ruled_out=space.ruled_out,
        projections=_project(result) if forecast else Projections(reason="not asked for"),
        next_steps=advise(trials) if result.best is None else (),
    )


def group_failed(trials: Sequence[Trial]) -> tuple[TrialGroup, ...]:
    """Trials that failed, by what their reasons have in common."""
    return _group(trials, lambda trial: trial.complaint if trial.state is TrialState.failed else None)


def _group(trials: Sequence[Trial], reason_of: Callable[[Trial], str | None]) -> tuple[TrialGroup, ...]:
    reasons = {trial.number: (trial, reason_of(trial)) for trial in trials}
    return _group_by({n: (trial, reason) for n, (trial, reason) in reasons.items() if reason})


def _group_by(reasons: Mapping[int, tuple[Trial, str]]) -> tuple[TrialGroup, ...]:
    groups: dict[str, list[Trial]] = {}
    for trial, reason in reasons.values():
        groups.setdefault(reason, []).append(trial)
    told = [
        TrialGroup(
            reason=reason,
            trials=tuple(trial.number for trial in group),
            example=group[0].reason or reason,
        )
        for reason, group in groups.items()
    ]
    return tuple(sorted(told, key=lambda group: (-group.count, group.trials)))


def _project(result: StudyResult) -> Projections:
    """From the fastest of the recommended configuration's runs that is still there."""
    best = result.best
    if best is None:
        return Projections(reason="no configuration can be recommended")
    runs = [run for run in group_runs(result.trials).get(best.number, ()) if run.is_candidate]
    paths = [result.run_path(run) for run in reversed(runs)]
    there = next((path for path in paths if (path / "run.json").exists()), None)
    if there is None:
        return Projections(reason="none of its runs left a run directory")
    return project(there)


def _plain(value: Any) -> Any:
    if isinstance(value, Interval):
        return {"mid": value.mid, "low": value.low, "high": value.high}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    return value
