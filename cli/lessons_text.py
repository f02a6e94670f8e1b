"""What a study teaches, as plain tables for a terminal: contest, knobs, predictions, what failed.

Knows nothing of streams.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cli.layout import table
from reports import text
from reports.lesson_rows import (
    describe_knobs,
    describe_predictions,
    describe_trade_offs,
    show_group,
    show_knob,
    show_ruled_out,
    show_trade_off,
)
from reports.study_rows import list_contest

if TYPE_CHECKING:
    from autotune.lessons.taught import Lessons
    from autotune.result import StudyResult


def tell_contest(result: StudyResult, lessons: Lessons) -> list[str]:
    """Contenders against the starting configuration, and what larger machines should bring."""
    contest = list_contest(result, lessons)
    if not contest.rows:
        return []
    rows = [
        (
            f"{'*' if row.best else ' '} {row.configuration}",
            f"{row.rate} ({row.range})",
            row.days,
            f"{row.speed_up} ({row.speed_up_range})" if row.speed_up_range else row.speed_up,
            row.note,
        )
        for row in contest.rows
    ]
    head = ("  configuration", "tokens per second", contest.days_head, "speed-up", "")
    return ["", table(head, rows), *contest.notes]


def tell_knobs(lessons: Lessons) -> list[str]:
    """What each knob was worth."""
    rows = [show_knob(worth) for worth in lessons.knobs.knobs]
    if not rows:
        return []
    cells = [
        (row.name, row.change, f"{row.worth} ({row.range})" if row.range else row.worth, row.verdict)
        for row in rows
    ]
    note = describe_knobs(lessons.knobs)[1:2]
    return ["", table(("what each knob was worth", "", "", ""), cells), *note]


def tell_predictions(lessons: Lessons) -> list[str]:
    """How well the search knew what it would measure."""
    if lessons.predictions.reason is not None:
        return []
    return ["", "predicted and measured:", *describe_predictions(lessons.predictions)]


def tell_trade_offs(lessons: Lessons) -> list[str]:
    """The configurations that nothing beats in everything, where more than speed is known."""
    told = lessons.trade_offs
    best = [show_trade_off(row) for row in told.configurations if row.is_best]
    if not best or (told.memory_reason and told.energy_reason):
        return []
    cells = [(f"trial {row.trial}", row.rate, row.memory, row.energy) for row in best]
    head = ("best in something", "tokens per second", "memory at the fullest place", "energy per token")
    return ["", table(head, cells), *describe_trade_offs(told)[1:]]


def tell_set_aside(lessons: Lessons) -> list[str]:
    """What cannot win, with reasons, most common first; and what was ruled out before."""
    lines: list[str] = []
    for heading, groups in (
        ("failed because", lessons.failed),
        ("excluded because", lessons.excluded),
        ("stopped early because", lessons.stopped_early),
        ("not of this space because", lessons.not_applying),
    ):
        rows = [show_group(group) for group in groups]
        cells = [(str(row.count), " ".join(row.reason.split()), row.trials) for row in rows]
        lines += ["", table(("trials", heading, "which"), cells)] if cells else []
    ruled_out = [show_ruled_out(each) for each in lessons.ruled_out]
    left_out = [(f"{row.count:,}", row.reason) for row in ruled_out]
    lines += ["", table(("combinations", "ruled out by arithmetic because"), left_out)] if left_out else []
    return lines


def tell_next_steps(lessons: Lessons) -> list[tuple[str, str]]:
    """What to do where nothing can be recommended."""
    return [("next", "\n".join(lessons.next_steps))] if lessons.next_steps else []


def tell_length(lessons: Lessons, tokens_per_s: float) -> list[tuple[str, str]]:
    """Days of the whole training with what is recommended."""
    days = lessons.length.days(tokens_per_s)
    if days is None or lessons.length.epochs is None:
        return []
    epochs = text.count_of(lessons.length.epochs, "epoch")
    return [("training", f"{epochs} would take {text.duration(86_400 * days)}")]
