"""Trials and standings of a study as rows of tables and points of a chart.

Knows nothing of how trials are chosen or of how tables are drawn.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autotune.comparison import Interval
from autotune.recommendation import Standing
from autotune.result import StudyResult
from autotune.trial import Trial, TrialState
from reports import text
from reports.charts import TrialPoint


@dataclass(frozen=True, slots=True, kw_only=True)
class StandingRow:
    """A configuration over all its runs, as the table of results shows it."""

    configuration: str
    note: str  # winner, starting configuration
    rate: str
    range: str
    runs: str
    speed_up: str
    best: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRow:
    """One trial, as the table of trials shows it."""

    number: int
    configuration: str
    why: str
    state: str
    tone: str
    rate: str
    outcome: str  # what limited it, or why it failed


def times(ratio: float) -> str:
    """A ratio of speeds: `1.84×`."""
    return f"{ratio:.2f}×"


def _configuration(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{path.rpartition('.')[2]} {value}" for path, value in values.items())


def show_standing(result: StudyResult, standing: Standing) -> StandingRow:
    """A row of the table of results."""
    rate = standing.tokens_per_s
    return StandingRow(
        configuration=_configuration(standing.trial.values),
        note=_role_note(result, standing.trial),
        rate=text.rate(rate.mid),
        range=text.rate_range(rate.low, rate.high),
        runs=f"{standing.runs}",
        speed_up=_speed_up(result, standing),
        best=_is(standing.trial, result.best),
    )


def _is(trial: Trial, other: Trial | None) -> bool:
    return other is not None and trial.number == other.number


def _role_note(result: StudyResult, trial: Trial) -> str:
    roles = [
        ("recommended", _is(trial, result.best)),
        ("starting configuration", _is(trial, result.start)),
        ("fastest", _is(trial, result.fastest) and not _is(trial, result.best)),
        ("as fast within the noise", trial.number in result.equals and not _is(trial, result.best)),
    ]
    return ", ".join([f"trial {trial.number}", *(words for words, applies in roles if applies)])


def _speed_up(result: StudyResult, standing: Standing) -> str:
    start = result.standing_of(result.start)
    if start is None:
        return text.missing("no start")
    if _is(standing.trial, result.start):
        return "1×"
    if _is(standing.trial, result.fastest) and result.gain is not None:
        return f"{times(result.gain.mid)} ({_range(result.gain)})"
    return times(standing.tokens_per_s.mid / start.tokens_per_s.mid)


def _range(interval: Interval) -> str:
    return f"{interval.low:.2f} to {interval.high:.2f}"


def show_point(result: StudyResult, trial: Trial) -> TrialPoint:
    """A point of the chart of trials."""
    measured = trial.measurement
    return TrialPoint(
        number=trial.number,
        name=_configuration(trial.values),
        tokens_per_s=None if measured is None else measured.tokens_per_s,
        low=None if measured is None else measured.low,
        high=None if measured is None else measured.high,
        role=_role(result, trial),
        reason=trial.unhealthy or _failure(trial),
    )


def _role(result: StudyResult, trial: Trial) -> str:
    if trial.measurement is None:
        return "failed" if trial.state is TrialState.failed else "unfinished"
    if trial.unhealthy is not None:
        return "unhealthy"
    first = trial.number if trial.repeat_of is None else trial.repeat_of
    if result.best is not None and first == result.best.number:
        return "recommended"
    return "baseline" if result.start is not None and first == result.start.number else "candidate"


def _failure(trial: Trial) -> str | None:
    if trial.measurement is not None:
        return None
    return ": ".join(part for part in (trial.failure, trial.reason) if part) or trial.state.value


def show_trial(trial: Trial) -> TrialRow:
    """A row of the table of trials."""
    measured = trial.measurement
    limits = trial.cause
    failed = trial.state is TrialState.failed or trial.unhealthy is not None
    state = "unhealthy" if trial.unhealthy is not None else trial.state.value
    outcome = trial.unhealthy or _failure(trial)
    if outcome is None:
        outcome = f"{limits.name}: {limits.summary}" if limits else (measured and measured.verdict) or ""
    return TrialRow(
        number=trial.number,
        configuration=_configuration(trial.values),
        why=trial.why,
        state=state,
        tone="bad" if failed else "",
        rate=_measured_rate(trial),
        outcome=outcome,
    )


def _measured_rate(trial: Trial) -> str:
    measured = trial.measurement
    if measured is None:
        return text.missing()
    interval = f" ({text.rate_range(measured.low, measured.high)})" if text.is_known(measured.low) else ""
    return text.rate(measured.tokens_per_s) + interval
