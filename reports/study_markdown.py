"""What a study found as Markdown, to paste into an issue tracker: contest, knobs, predictions, failures.

What comes from a study is escaped (see markdown.py). Knows nothing of HTML pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from autotune.lessons.taught import Lessons, TrialGroup
from autotune.result import StudyResult
from reports import text
from reports.lesson_rows import (
    describe_knobs,
    describe_predictions,
    describe_projections,
    describe_trade_offs,
    show_group,
    show_knob,
    show_ruled_out,
    show_trade_off,
)
from reports.markdown import escape, fenced, folded, table
from reports.parts import say
from reports.study_rows import describe_stop, list_contest
from reports.study_verdict import name_verdict, next_steps, reasons, settings_of

most_trade_offs: Final = 20


def describe_study(result: StudyResult, lessons: Lessons) -> str:
    """The whole text, ending with a line break."""
    why = (*result.why, *reasons(result, lessons))
    settings = settings_of(result)
    blocks = [
        f"## {escape(result.study_dir.resolve().name)}: {escape(name_verdict(result))}",
        "\n".join(f"- {escape(line)}" for line in why),
        "\n".join(f"**Next:** {escape(line)}" for line in next_steps(result, lessons)),
        fenced(settings, "") if settings else "",
        "*Emulated on logical devices: says nothing of GPU speed.*" if result.identity.emulated else "",
        "### Results",
        *_contest(result, lessons),
        "### What each knob was worth",
        *_knobs(lessons),
        "### Predicted and measured",
        *map(escape, describe_predictions(lessons.predictions)),
        "### Speed, memory, energy",
        *_trade_offs(lessons),
        *_set_aside(lessons),
        "### Where it stopped",
        *map(escape, describe_stop(result)),
        _best(result),
        folded("Provenance", table(("fact", "value"), _facts(result))),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _contest(result: StudyResult, lessons: Lessons) -> list[str]:
    contest = list_contest(result, lessons)
    head = ("configuration", "tokens per second", contest.days_head, "speed-up")
    rows = [
        (
            f"{row.configuration} ({row.note})",
            f"{row.rate} ({row.range})",
            row.days,
            f"{row.speed_up} ({row.speed_up_range})" if row.speed_up_range else row.speed_up,
        )
        for row in contest.rows
    ]
    shown = table(head, rows) if rows else escape(text.missing("no trial was measured and healthy"))
    return [shown, *map(escape, contest.notes), escape(describe_projections(lessons.projections))]


def _knobs(lessons: Lessons) -> list[str]:
    rows = [show_knob(worth) for worth in lessons.knobs.knobs]
    cells = [
        (
            row.name,
            row.change,
            f"{row.worth} ({row.range})" if row.range else row.worth,
            row.verdict,
            row.told_by,
        )
        for row in rows
    ]
    head = ("knob", "choice", "worth", "verdict", "known because")
    return [*map(escape, describe_knobs(lessons.knobs)), table(head, cells) if cells else ""]


def _trade_offs(lessons: Lessons) -> list[str]:
    best = [show_trade_off(row) for row in lessons.trade_offs.configurations if row.is_best]
    cells = [(f"{row.trial}", row.rate, row.memory, row.energy) for row in best[:most_trade_offs]]
    head = ("trial", "tokens per second", "memory at the fullest place", "energy per token")
    return [*map(escape, describe_trade_offs(lessons.trade_offs)), table(head, cells) if cells else ""]


def _set_aside(lessons: Lessons) -> list[str]:
    parts = [
        ("Failed", lessons.failed),
        ("Excluded as unhealthy", lessons.excluded),
        ("Stopped early", lessons.stopped_early),
        ("Of an earlier space", lessons.not_applying),
    ]
    told = [line for heading, groups in parts if groups for line in (f"### {heading}", _groups(groups))]
    ruled_out = [show_ruled_out(each) for each in lessons.ruled_out]
    if ruled_out:
        cells = [(f"{row.count:,}", row.reason, row.example) for row in ruled_out]
        told += ["### Ruled out before anything ran", table(("combinations", "reason", "for example"), cells)]
    return told


def _groups(groups: Sequence[TrialGroup]) -> str:
    rows = [show_group(group) for group in groups]
    cells = [(f"{row.count}", f"{row.reason}. {row.example}".rstrip(". "), row.trials) for row in rows]
    return table(("trials", "reason", "which"), cells)


def _best(result: StudyResult) -> str:
    toml = result.best_config_toml()
    return folded("best.toml", fenced(toml, "toml")) if toml else ""


def _facts(result: StudyResult) -> list[tuple[str, str]]:
    identity = result.identity
    space = [(path, ", ".join(map(str, choices))) for path, choices in identity.space.items()]
    return [
        ("version", identity.version or text.missing("not installed")),
        ("machine", say(identity.machine)),
        ("model and data", say(identity.inputs)),
        *space,
    ]
