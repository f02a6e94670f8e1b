"""`dflash-tune show --json` against the table in docs/study.md: the same fields, values of the types said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autotune.result import StudyResult, conclude
from autotune.telemetry import Failed, FailureKind
from cli.study_presentation import present
from tests.documented_schema import Schema, check, read_schema
from tests.searched_study import search_played

page = Path(__file__).parents[3] / "docs" / "study.md"


@pytest.fixture(scope="module")
def schema() -> Schema:
    return read_schema(page)


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> StudyResult:
    return search_played(tmp_path_factory.mktemp("studies") / "study")


def shown(result: StudyResult, capsys: pytest.CaptureFixture[str]) -> Any:
    present(result, as_json=True)
    return json.loads(capsys.readouterr().out, parse_constant=pytest.fail)


def test_a_rich_study_and_the_page_agree(
    played: StudyResult, schema: Schema, capsys: pytest.CaptureFixture[str]
) -> None:
    document = shown(played, capsys)
    check(document, "STUDY", schema, "study")
    lessons = document["lessons"]
    assert lessons["knobs"]["knobs"]
    assert lessons["projections"]["splits"]
    assert all(lessons[name] for name in ("failed", "excluded", "stopped_early", "ruled_out"))
    assert Path(document["report"]).exists()


def test_a_study_of_failures_agrees_too(
    played: StudyResult, schema: Schema, capsys: pytest.CaptureFixture[str]
) -> None:
    memory = Failed(FailureKind.out_of_memory, "CUDA out of memory")
    failed = [played.trials[0].replacing(measurement=None).judged(memory)]
    result = conclude(played.study_dir, played.identity, played.space, failed, played.effort)
    document = shown(result, capsys)
    check(document, "STUDY", schema, "study")
    assert document["lessons"]["next_steps"]
    assert document["lessons"]["knobs"]["reason"]


def test_markdown_goes_to_stdout_alone(played: StudyResult, capsys: pytest.CaptureFixture[str]) -> None:
    present(played, as_markdown=True)
    assert capsys.readouterr().out.startswith("## study: ")


def test_text_holds_every_table(played: StudyResult, capsys: pytest.CaptureFixture[str]) -> None:
    present(played)
    out = capsys.readouterr().out
    for words in (
        "days for 6 epochs",
        "* split 3-1",
        "what each knob was worth",
        "predicted and measured:",
        "best in something",
        "failed because",
        "excluded because",
        "stopped early because",
        "ruled out by arithmetic because",
        "6 epochs would take",
        "Chance that something untried is faster",
        "on 8 devices, predicted",
    ):
        assert words in out
    assert "\u00a0" not in out
