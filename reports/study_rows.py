"""Trials of a study, and the contest that they decide, as rows of words.

For terminal, page and tracker alike. Knows nothing of how trials are chosen or of how tables are drawn.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from autotune.trial import Trial, TrialState
from reports import text

if TYPE_CHECKING:
    from autotune.comparison import Interval
    from autotune.lessons.taught import Lessons
    from autotune.recommendation import Standing
    from autotune.result import StudyResult

most_contenders: Final = 8  # in the table of the contest; the others are counted


@dataclass(frozen=True, slots=True, kw_only=True)
class ContestRow:
    """A configuration in the contest: `2-1, 4096 tokens | 14.8 Ktok/s | 8.8 days | 2.6×`."""

    configuration: str
    note: str  # trial 3, recommended; or what a prediction goes beyond
    rate: str
    range: str
    days: str
    speed_up: str
    speed_up_range: str
    best: bool = False
    predicted: bool = False  # nothing was measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """The starting configuration first, the others by speed, predictions for larger machines last."""

    rows: tuple[ContestRow, ...]
    days_head: str  # `days for 6 epochs`
    notes: tuple[str, ...]  # what all have alike, what was left out, why days are not known


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
    """A ratio of speeds: `1.84×`, `12.3×`."""
    return f"{ratio:.2f}×" if ratio < 10 else f"{text.significant(ratio)}×"


def name_configuration(values: Mapping[str, Any], paths: Iterable[str] | None = None) -> str:
    """`split 2-1, token_budget 4096`: the values of all knobs, or of those named."""
    shown = values if paths is None else {path: values[path] for path in paths}
    return ", ".join(f"{path.rpartition('.')[2]} {value}" for path, value in shown.items())


def list_contest(result: StudyResult, lessons: Lessons) -> Contest:
    """All contenders against the starting configuration."""
    start = result.standing_of(result.start)
    others = [standing for standing in result.standings if standing is not start]
    listed = ([start] if start else []) + others[: most_contenders - 1]
    paths = _varying([standing.trial.values for standing in listed])
    rows = [_contest_row(result, lessons, standing, paths) for standing in listed]
    rows += _predicted_rows(result, lessons)
    left = len(result.standings) - len(listed)
    notes = [_alike(listed, paths)] if listed else []
    notes += [f"{text.count_of(left, 'further configuration')} measured, slower than these."] if left else []
    if lessons.length.reason:
        notes.append(f"Days are not known: {lessons.length.reason}.")
    epochs = lessons.length.epochs
    return Contest(
        rows=tuple(rows),
        days_head="days" if epochs is None else f"days for {text.count_of(epochs, 'epoch')}",
        notes=tuple(note for note in notes if note),
    )


def _varying(every: Sequence[Mapping[str, Any]]) -> list[str]:
    """Knobs in which the configurations differ; all of them where there is only one."""
    if len(every) < 2:
        return [path for values in every for path in values]
    return [path for path in every[0] if any(values[path] != every[0][path] for values in every)]


def _alike(listed: Sequence[Standing], paths: Sequence[str]) -> str:
    values = listed[0].trial.values
    same = [path for path in values if path not in paths]
    return f"All with {name_configuration(values, same)}." if same else ""


def _contest_row(
    result: StudyResult, lessons: Lessons, standing: Standing, paths: Sequence[str]
) -> ContestRow:
    rate = standing.tokens_per_s
    speed_up, speed_up_range = _speed_up(result, standing)
    return ContestRow(
        configuration=name_configuration(standing.trial.values, paths),
        note=f"{_role_note(result, standing.trial)}, {text.count_of(standing.runs, 'run')}",
        rate=text.rate(rate.mid),
        range=text.rate_range(rate.low, rate.high),
        days=_days(lessons, rate.mid),
        speed_up=speed_up,
        speed_up_range=speed_up_range,
        best=is_same(standing.trial, result.best),
    )


def _predicted_rows(result: StudyResult, lessons: Lessons) -> list[ContestRow]:
    """The recommended configuration on more devices: its rate over all its runs, times the ratio forecast."""
    start, best = result.standing_of(result.start), result.standing_of(result.best)
    if best is None:
        return []
    rows, now = [], best.tokens_per_s.mid
    for told in lessons.projections.splits:
        rate = now * told.ratio.mid
        rows.append(
            ContestRow(
                configuration=f"{told.split} on {told.devices} devices, predicted",
                note="not measured; " + ("; ".join(told.doubts[:1]) or "within what was seen"),
                rate=text.rate(rate),
                range=text.rate_range(now * told.ratio.low, now * told.ratio.high),
                days=_days(lessons, rate),
                speed_up=times(rate / start.tokens_per_s.mid) if start else text.missing("no start"),
                speed_up_range="",
                predicted=True,
            )
        )
    return rows


def _days(lessons: Lessons, tokens_per_s: float) -> str:
    days = lessons.length.days(tokens_per_s)
    if days is None:
        return text.missing()
    return text.duration(86_400 * days) if days < 0.1 else text.significant(days, 2 if days < 10 else 3)


def is_same(trial: Trial, other: Trial | None) -> bool:
    """Whether both are the same trial."""
    return other is not None and trial.number == other.number


def _role_note(result: StudyResult, trial: Trial) -> str:
    roles = [
        ("recommended", is_same(trial, result.best)),
        ("starting configuration", is_same(trial, result.start)),
        ("fastest", is_same(trial, result.fastest) and not is_same(trial, result.best)),
        ("as fast within the noise", trial.number in result.equals and not is_same(trial, result.best)),
    ]
    return ", ".join([f"trial {trial.number}", *(words for words, applies in roles if applies)])


def _speed_up(result: StudyResult, standing: Standing) -> tuple[str, str]:
    if result.standing_of(result.start) is None:
        return text.missing("no start"), ""
    if is_same(standing.trial, result.start):
        return "1×", ""
    gain = result.gains[standing.trial.number]
    return times(gain.mid), _range(gain)


def _range(interval: Interval) -> str:
    return f"{interval.low:.2f} to {interval.high:.2f}"


def complain(trial: Trial) -> str | None:
    """Why it cannot win, with what it was in front."""
    if trial.measurement is None:
        return ": ".join(part for part in (trial.failure, trial.reason) if part) or trial.state.value
    if trial.unhealthy is None and trial.soak:
        return "a soak: the worst mix of lengths, not compared"
    return trial.unhealthy or trial.measurement.stopped_early


def describe_stop(result: StudyResult) -> tuple[str, ...]:
    """How far the search is, why it stops there, and what may have been missed."""
    said = (f"{result.stop[:1].upper()}{result.stop[1:]}.",)
    if result.gap_probability is None:
        return said
    gap = text.share(result.effort.tolerance)
    chance = text.share(result.gap_probability)
    return (*said, f"Chance that something untried is faster by more than {gap}: {chance}.")


def show_trial(trial: Trial) -> TrialRow:
    """A row of the table of trials."""
    measured = trial.measurement
    limits = trial.cause
    outcome = complain(trial)
    if outcome is None:
        outcome = f"{limits.name}: {limits.summary}" if limits else (measured and measured.verdict) or ""
    return TrialRow(
        number=trial.number,
        configuration=name_configuration(trial.values),
        why=trial.why,
        state=_state(trial),
        tone="bad" if trial.state is TrialState.failed or trial.unhealthy is not None else "",
        rate=_measured_rate(trial),
        outcome=outcome,
    )


def _state(trial: Trial) -> str:
    if trial.unhealthy is not None:
        return "unhealthy"
    if trial.measurement is not None and trial.measurement.stopped_early is not None:
        return "stopped early"
    return trial.state.value


def _measured_rate(trial: Trial) -> str:
    measured = trial.measurement
    if measured is None:
        return text.missing()
    interval = f" ({text.rate_range(measured.low, measured.high)})" if text.is_known(measured.low) else ""
    return text.rate(measured.tokens_per_s) + interval
