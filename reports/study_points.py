"""What a study found as the values that its charts draw.

Knows nothing of how anything was inferred or of how charts are drawn.
"""

from __future__ import annotations

from autotune.lessons.taught import Lessons
from autotune.result import StudyResult
from autotune.trial import Trial, TrialState
from reports.study_charts import Balance, Expectation, TrialPoint, Whisker
from reports.study_rows import complain, name_configuration


def show_point(result: StudyResult, trial: Trial) -> TrialPoint:
    """A point of the chart of trials."""
    measured = trial.measurement
    return TrialPoint(
        number=trial.number,
        name=name_configuration(trial.values),
        tokens_per_s=None if measured is None else measured.tokens_per_s,
        low=None if measured is None else measured.low,
        high=None if measured is None else measured.high,
        role=_role(result, trial),
        reason=complain(trial),
    )


def _role(result: StudyResult, trial: Trial) -> str:
    if trial.measurement is None:
        return "failed" if trial.state is TrialState.failed else "unfinished"
    if trial.unhealthy is not None:
        return "unhealthy"
    if not trial.is_candidate:
        return "early"
    first = trial.number if trial.repeat_of is None else trial.repeat_of
    if result.best is not None and first == result.best.number:
        return "recommended"
    return "baseline" if result.start is not None and first == result.start.number else "candidate"


def show_worths(lessons: Lessons) -> list[Whisker]:
    """What each knob was worth, for the chart."""
    return [
        Whisker(
            name=f"{worth.path.rpartition('.')[2]}: {worth.choice}, not {worth.other}",
            ratio=worth.ratio.mid if worth.ratio else None,
            low=worth.ratio.low if worth.ratio else 1.0,
            high=worth.ratio.high if worth.ratio else 1.0,
            verdict=worth.verdict,
            sure=worth.verdict in ("faster", "slower"),
        )
        for worth in lessons.knobs.knobs
    ]


def show_expectations(lessons: Lessons) -> list[Expectation]:
    """Predictions that came to a figure."""
    return [
        Expectation(
            number=told.number,
            predicted=told.predicted.tokens_per_s,
            measured=told.tokens_per_s,
            low=told.predicted.low,
            high=told.predicted.high,
            again=told.again,
        )
        for told in lessons.predictions.trials
        if told.tokens_per_s is not None
    ]


def show_memory(result: StudyResult, lessons: Lessons) -> tuple[list[Balance], str]:
    """Speed against memory, and what the axis says."""
    rows = lessons.trade_offs.configurations
    by_share = all(row.peak_share is not None for row in rows)
    costs = [100 * (row.peak_share or 0.0) if by_share else (row.peak_bytes or 0.0) / 1e9 for row in rows]
    words = "% of memory at the fullest place" if by_share else "GB at the fullest place"
    return _balances(result, lessons, costs), words


def show_energy(result: StudyResult, lessons: Lessons) -> tuple[list[Balance], str]:
    """Speed against energy, and what the axis says."""
    costs = [1000 * (row.energy_j_per_token or 0.0) for row in lessons.trade_offs.configurations]
    return _balances(result, lessons, costs), "mJ a token"


def _balances(result: StudyResult, lessons: Lessons, costs: list[float]) -> list[Balance]:
    values = {trial.number: trial.values for trial in result.trials}
    return [
        Balance(
            trial=row.trial,
            name=name_configuration(values[row.trial]),
            tokens_per_s=row.tokens_per_s.mid,
            cost=cost,
            best=row.is_best,
        )
        for row, cost in zip(lessons.trade_offs.configurations, costs, strict=True)
    ]
