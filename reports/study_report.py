"""The report of a study: what won against the start, by how much, why, and every trial. One HTML file.

Everything shown comes from the stored trials; nothing is measured or judged here. Knows nothing of how
trials are chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from autotune.effort import Effort
from autotune.lessons.taught import Lessons
from autotune.recommendation import Standing
from autotune.result import StudyResult
from autotune.trial import TrialState
from reports import text
from reports.lesson_rows import (
    describe_knobs,
    describe_predictions,
    describe_projections,
    describe_trade_offs,
    list_projections,
    show_group,
    show_knob,
    show_prediction,
    show_ruled_out,
    show_trade_off,
    total,
)
from reports.page import Chart, render_page, write_page
from reports.parts import Badge, Tile, VerdictCard, emulated_badge, say
from reports.study_charts import draw_balance, draw_predictions, draw_trials, draw_worths
from reports.study_points import show_energy, show_expectations, show_memory, show_point, show_worths
from reports.study_rows import describe_stop, list_contest, show_trial, times
from reports.study_verdict import name_verdict, next_steps, reasons, settings_of

most_rows: Final = 500  # of a table; the JSON has all


def write_report(result: StudyResult, lessons: Lessons, out: Path | None = None) -> Path:
    """Write the report of a study (default: report.html inside it)."""
    return write_page(out or result.study_dir / "report.html", render_study(result, lessons))


def render_study(result: StudyResult, lessons: Lessons) -> str:
    """The page of one study as HTML."""
    name = result.study_dir.resolve().name
    card = _card(result, lessons)
    parts = [_results(result, lessons), _knobs(lessons), _predictions(lessons), _trade_offs(result, lessons)]
    parts += [_all_trials(result), _set_aside(lessons)]
    sections = {key: value for part in parts for key, value in part.items()}
    return render_page(
        "study.html.j2",
        title=f"{name}: {card.verdict}",
        kind="Report of a configuration search",
        heading=name,
        badges=_badges(result),
        card=card,
        tiles=_tiles(result),
        stop=describe_stop(result),
        best_toml=result.best_config_toml(),
        space=[(path, ", ".join(map(str, choices))) for path, choices in result.identity.space.items()],
        facts=_provenance(result),
        charts=[chart for chart in sections.values() if isinstance(chart, Chart)],
        **sections,
    )


def _results(result: StudyResult, lessons: Lessons) -> dict[str, object]:
    return {
        "contest": list_contest(result, lessons),
        "projections": list_projections(result, lessons),
        "projections_note": describe_projections(lessons.projections),
    }


def _knobs(lessons: Lessons) -> dict[str, object]:
    worths = show_worths(lessons)
    return {
        "knob_rows": [show_knob(worth) for worth in lessons.knobs.knobs],
        "knob_notes": describe_knobs(lessons.knobs),
        "worths": draw_worths(worths) if any(each.ratio is not None for each in worths) else None,
    }


def _predictions(lessons: Lessons) -> dict[str, object]:
    expected = show_expectations(lessons)
    rows = [show_prediction(told) for told in lessons.predictions.trials]
    return {
        "prediction_rows": rows[:most_rows],
        "prediction_notes": (*describe_predictions(lessons.predictions), *_say_left(rows)),
        "predictions": draw_predictions(expected) if expected else None,
    }


def _trade_offs(result: StudyResult, lessons: Lessons) -> dict[str, object]:
    told = lessons.trade_offs
    rows = [show_trade_off(row) for row in told.configurations]
    return {
        "trade_off_rows": rows[:most_rows],
        "trade_off_notes": (*describe_trade_offs(told), *_say_left(rows)),
        "memory": None if told.memory_reason else draw_balance(*show_memory(result, lessons), name="memory"),
        "energy": None if told.energy_reason else draw_balance(*show_energy(result, lessons), name="energy"),
    }


def _all_trials(result: StudyResult) -> dict[str, object]:
    rows = [show_trial(trial) for trial in result.trials]
    return {
        "trials": draw_trials([show_point(result, trial) for trial in result.trials]),
        "trial_rows": rows[:most_rows],
        "trial_notes": _say_left(rows),
    }


def _set_aside(lessons: Lessons) -> dict[str, object]:
    """What cannot win, by what happened to it: heading, head of the reasons, rows."""
    groups = [
        ("Failed", "reason", lessons.failed),
        ("Ran, and excluded as unhealthy", "reason", lessons.excluded),
        ("Stopped early", "because", lessons.stopped_early),
        ("Of an earlier space", "does not apply because", lessons.not_applying),
    ]
    return {
        "set_aside": [
            (f"{heading}: {text.count_of(total(told), 'trial')}", head, [show_group(group) for group in told])
            for heading, head, told in groups
            if told
        ],
        "ruled_out": [show_ruled_out(each) for each in lessons.ruled_out],
    }


def _say_left(rows: Sequence[object]) -> tuple[str, ...]:
    left = len(rows) - most_rows
    return (f"{text.count_of(left, 'further row')}: dflash-tune show --json has all.",) if left > 0 else ()


def _badges(result: StudyResult) -> list[Badge]:
    words = {"better": "a change pays", "equal": "the start stands", "none": "no recommendation"}
    tone = "bad" if result.verdict == "none" else "good"
    return [Badge(words[result.verdict], tone), *emulated_badge(result.identity.emulated)]


def _card(result: StudyResult, lessons: Lessons) -> VerdictCard:
    return VerdictCard(
        verdict=name_verdict(result),
        why=(*result.why, *reasons(result, lessons)),
        next=next_steps(result, lessons),
        command=settings_of(result),
        bad=result.verdict == "none",
    )


def _tiles(result: StudyResult) -> list[Tile]:
    over = [trial for trial in result.trials if trial.state.is_over]
    failed = sum(trial.state is TrialState.failed for trial in over)
    configurations = len({tuple(trial.values.items()) for trial in over})
    gain = result.gain
    return [
        _rate_tile("recommended", result.standing_of(result.best), "no configuration can be recommended"),
        _rate_tile("starting configuration", result.standing_of(result.start), _why_no_start(result)),
        Tile(
            "speed-up of the fastest",
            text.missing("nothing to compare") if gain is None else times(gain.mid),
            "" if gain is None else f"{text.interval} {times(gain.low)} to {times(gain.high)}",
        ),
        Tile(
            "trials",
            f"{len(over)}",
            f"{configurations:,} of {result.space.size:,} configurations; {failed} failed",
        ),
        Tile("a trial trains for", text.duration(result.identity.seconds), "warm-up included"),
    ]


def _rate_tile(label: str, standing: Standing | None, reason: str | None) -> Tile:
    if standing is None:
        return Tile(label, text.missing(reason))
    rate = standing.tokens_per_s
    runs = text.count_of(standing.runs, "run")
    return Tile(label, text.rate(rate.mid), f"{text.interval} {text.rate_range(rate.low, rate.high)}, {runs}")


def _why_no_start(result: StudyResult) -> str:
    start = result.start
    if start is None:
        return "it was not tried"
    return start.unhealthy or start.reason or "it was not measured"


def _provenance(result: StudyResult) -> list[tuple[str, str]]:
    identity, effort = result.identity, result.effort
    return [
        ("study directory", str(result.study_dir.resolve())),
        ("begun", identity.created_utc),
        ("version", identity.version or text.missing("not installed")),
        ("machine", say(identity.machine)),
        ("devices used", str(identity.devices)),
        ("emulated", "yes: logical devices" if identity.emulated else "no"),
        ("model and data", say(identity.inputs)),
        ("effort", _effort(effort)),
    ]


def _effort(effort: Effort) -> str:
    trials, repeats = text.count_of(effort.trials, "configuration"), text.count_of(effort.repeats, "repeat")
    return f"{trials}, {repeats} of each contender; gaps below {text.share(effort.tolerance)} are no gain"
