"""What a study teaches, on the page and in Markdown: contest, knobs, predictions, trade-offs, failures."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from autotune.lessons.taught import Lessons, learn
from autotune.result import StudyResult, conclude
from autotune.telemetry import Failed, FailureKind
from reports import text
from reports.lesson_rows import list_projections, show_knob, show_trade_off
from reports.study_markdown import describe_study
from reports.study_report import render_study
from reports.study_rows import list_contest
from tests.html_outline import Outline
from tests.searched_study import data_tokens, search_played


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> StudyResult:
    return search_played(tmp_path_factory.mktemp("studies") / "study")


@pytest.fixture(scope="module")
def lessons(result: StudyResult) -> Lessons:
    return learn(result)


@pytest.fixture(scope="module")
def outline(result: StudyResult, lessons: Lessons) -> Outline:
    return Outline(render_study(result, lessons))


@pytest.fixture(scope="module")
def markdown(result: StudyResult, lessons: Lessons) -> str:
    return describe_study(result, lessons)


def said(words: str) -> str:
    return " ".join(words.split())


def test_the_contest_begins_with_the_start_and_ends_with_predictions(
    result: StudyResult, lessons: Lessons
) -> None:
    contest = list_contest(result, lessons)
    first, winner, *_, last = contest.rows
    assert "starting configuration" in first.note
    assert (first.speed_up, first.predicted) == ("1×", False)
    assert winner.best
    assert winner.speed_up_range
    assert last.predicted
    assert (
        last.configuration.startswith("6-2 on 8 devices, predicted") or "on 8 devices" in last.configuration
    )
    assert contest.days_head == "days for 6\u00a0epochs"
    standing = result.standing_of(result.best)
    assert standing is not None
    days = 6 * data_tokens / standing.tokens_per_s.mid / 86_400
    assert float(winner.days) == pytest.approx(days, rel=0.05)


def test_what_all_contenders_have_alike_is_said_once(result: StudyResult, lessons: Lessons) -> None:
    contest = list_contest(result, lessons)
    named = [path.rpartition(".")[2] for path in result.space.paths]
    for row in contest.rows:
        if not row.predicted:
            assert "preset" in row.configuration
    alike = next((note for note in contest.notes if note.startswith("All with ")), "")
    shown = contest.rows[0].configuration
    assert all((name in shown) != (f"{name} " in alike) for name in named)


def test_every_part_is_on_the_page(outline: Outline, result: StudyResult, lessons: Lessons) -> None:
    assert outline.problems == []
    for row in (show_knob(worth) for worth in lessons.knobs.knobs):
        assert row.name in outline.text
        assert said(row.change) in outline.text
    for row in list_projections(result, lessons):
        assert said(row.rate) in outline.text
        assert said(row.split) in outline.text
    assert {"trials", "worths", "predictions", "memory", "energy"} == set(outline.chart_specs())
    assert "Chance that something untried is faster by more than 2 %: 7 %." in outline.text
    assert "figures lie within their 90 % interval" in outline.text
    assert re.search(r"Failed: \d+ trials", outline.text)
    assert "Ran, and excluded as unhealthy" in outline.text
    assert "Stopped early" in outline.text
    assert "Ruled out before anything ran" in outline.text
    assert "the same as another one" in outline.text


def test_failures_come_with_the_most_common_first(lessons: Lessons) -> None:
    counts = [group.count for group in lessons.failed]
    assert counts == sorted(counts, reverse=True)
    assert {group.reason.partition(":")[0] for group in lessons.failed} == {"out of memory", "hang"}


def test_contents_and_charts_have_their_places(outline: Outline) -> None:
    targets = [str(a["href"])[1:] for a in outline.all("a") if str(a.get("href", "")).startswith("#")]
    assert set(targets) <= set(outline.ids())
    assert len(outline.ids()) == len(set(outline.ids()))


def test_projections_are_marked_and_of_the_rate_over_all_runs(result: StudyResult, lessons: Lessons) -> None:
    (row, *_) = list_projections(result, lessons)
    told, standing = lessons.projections.splits[0], result.standing_of(result.best)
    assert standing is not None
    assert row.rate.startswith(text.rate(standing.tokens_per_s.mid * told.ratio.mid))
    assert told.ratio.low < told.ratio.mid < told.ratio.high


def test_a_trade_off_says_place_share_and_energy(lessons: Lessons) -> None:
    row = show_trade_off(lessons.trade_offs.configurations[0])
    assert re.fullmatch(r"\d+\s% of cuda:0 \([\d.]+\sGB\)", row.memory)
    assert re.fullmatch(r"\d+\smJ", row.energy)


def test_markdown_says_the_same_and_nothing_in_it_is_markup(markdown: str, result: StudyResult) -> None:
    assert markdown.startswith("## study: Trial ")
    for heading in (
        "Results",
        "What each knob was worth",
        "Predicted and measured",
        "Failed",
        "Stopped early",
    ):
        assert f"\n### {heading}\n" in markdown
    assert "on 8 devices, predicted" in markdown
    assert "onerror" in markdown
    assert not re.search(r"(?<!\\)<(script|img|/script)", markdown)
    tables = [line for line in markdown.splitlines() if line.startswith("| ")]
    assert len(tables) > 20
    assert all(line.endswith(" |") for line in tables)
    assert result.best_config_toml() in markdown


def test_a_study_without_a_winner_names_reasons_and_what_to_try(tmp_path: Path) -> None:
    played = search_played(tmp_path / "study")
    memory = Failed(FailureKind.out_of_memory, "CUDA out of memory")
    failed = [played.trials[0].replacing(measurement=None).judged(memory)]
    result = conclude(played.study_dir, played.identity, played.space, failed, played.effort)
    lessons = learn(result)
    page = Outline(render_study(result, lessons))
    assert result.verdict == "none"
    assert "1 trial: out of memory." in page.text
    assert "Try a smaller pipeline.token_budget" in page.text
    assert "**Next:** Every configuration needs more memory" in describe_study(result, lessons)
