"""A study shown: as text, as Markdown for a tracker, or as JSON; its report is written anew each time.

Knows nothing of how a study is searched.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cli.console import print_json, say, show
from cli.study_text import summarise_study
from dflash.contract.errors import RunError

if TYPE_CHECKING:
    from autotune.lessons.taught import Lessons
    from autotune.result import StudyResult


def present(result: StudyResult, *, as_json: bool = False, as_markdown: bool = False) -> None:
    """Write the report of `result` and print what was found."""
    from autotune.lessons.taught import learn

    lessons = learn(result)
    report = _write(result, lessons)
    if as_json:
        paths = {"report": report, "best_toml": result.best_toml}
        named = {name: path and str(path) for name, path in paths.items()}
        print_json({**result.to_json(), "lessons": lessons.to_json(), **named})
    elif as_markdown:
        from reports.study_markdown import describe_study

        show(describe_study(result, lessons).rstrip())
    else:
        show(summarise_study(result, lessons, report))


def _write(result: StudyResult, lessons: Lessons) -> Path | None:
    from reports.study_report import write_report

    try:
        return write_report(result, lessons)
    except RunError as error:  # a study on a read-only disk can still be shown
        say(error.render())
        return None
