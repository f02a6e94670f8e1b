"""The answer of a study in sentences: what to train with, why nothing can be recommended, what to do next.

For page and tracker alike. Knows nothing of how it is drawn.
"""

from __future__ import annotations

import shlex
from typing import Final

from autotune.lessons.taught import Lessons
from autotune.result import StudyResult
from reports import text
from reports.study_rows import times

reasons_told: Final = 3


def name_verdict(result: StudyResult) -> str:
    """The verdict in one sentence."""
    if result.verdict == "none" or result.best is None:
        return "No configuration can be recommended."
    if result.verdict == "equal":
        return "Keep the starting configuration: nothing tried is faster beyond the noise or the tolerance."
    if result.gain is None:
        return f"Trial {result.best.number} is recommended; the start gave no figure to compare with."
    return (
        f"Trial {result.best.number} trains {times(result.gain.mid)} as fast as the starting configuration "
        f"({text.interval} {times(result.gain.low)} to {times(result.gain.high)})."
    )


def reasons(result: StudyResult, lessons: Lessons) -> tuple[str, ...]:
    """What kept every trial from being recommended, most common first; nothing where one is."""
    if result.best is not None:
        return ()
    return tuple(
        f"{text.count_of(group.count, 'trial')}: {group.reason}."
        for group in (*lessons.failed, *lessons.excluded)[:reasons_told]
    )


def next_steps(result: StudyResult, lessons: Lessons) -> tuple[str, ...]:
    """What to do now."""
    if result.best is None:
        return lessons.next_steps
    if result.verdict == "equal":
        return ("Nothing needs to change.",)
    file = str(result.best_toml or "best.toml")
    return (f"Train with it: dflash-train run {shlex.quote(file)}. Or change the present configuration by:",)


def settings_of(result: StudyResult) -> str:
    """The options that turn the starting configuration into the recommended one; empty without one."""
    if result.best is None or result.start is None:
        return ""
    before = result.start.values
    return " ".join(
        f"--set {shlex.quote(f'{path}={value}')}"
        for path, value in result.best.values.items()
        if value != before.get(path)
    )
