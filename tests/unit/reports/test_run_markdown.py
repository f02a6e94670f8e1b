from __future__ import annotations

import re
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from profiler.examination import examine
from reports.markdown import escape
from reports.run_markdown import describe_run
from tests.played_pipeline import Play, play
from tests.run_builder import RunBuilder

hostile = "</td>|`*x*`_y_[a](http://evil)<img src=x>\n# head @someone #12 ~~s~~\\"


def described(path: Path) -> str:
    return describe_run(examine(path))


def rendered(markdown: str) -> str:
    return MarkdownIt("commonmark", {"html": True}).enable("table").enable("strikethrough").render(markdown)


@pytest.fixture(scope="module")
def run_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "copying"
    return play(path, targets=2, preset="host", target_copy_s=0.5, windows=30)


def test_verdict_reason_and_next_step_come_first_then_every_hypothesis(run_path: Path) -> None:
    diagnosis = examine(run_path).diagnosis
    words = re.sub(r"<[^>]+>", "", rendered(described(run_path)))
    parts = [" ".join(said.split()) for said in (diagnosis.headline, diagnosis.why, diagnosis.next_step)]
    flat = " ".join(words.replace("&gt;", ">").replace("&quot;", '"').split())
    places = [flat.index(said) for said in parts]
    assert places == sorted(places)
    for finding in diagnosis.findings:
        assert finding.cause in flat


def test_the_remedy_is_there_as_toml_and_as_options(run_path: Path) -> None:
    page = described(run_path)
    assert '```toml\n[transport]\npreset = "peer"\n```' in page
    assert "--set transport.preset=peer" in page


def test_tables_keep_their_shape(run_path: Path) -> None:
    for table in re.findall(r"(?:^\|.*\n?)+", described(run_path), flags=re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1


@pytest.mark.parametrize("wrap", ["{}", "| a | {} |\n"])
def test_what_comes_from_a_run_is_text(wrap: str) -> None:
    html = rendered(wrap.format(escape(hostile)))
    assert not re.search(r"<(img|a|em|code|h1|s|table)\b", html)
    assert "@someone" not in html
    assert "#12" not in html
    assert "src=x" in html


@pytest.mark.parametrize("start", ["- a", "+ a", "# a", "=== a"])
def test_no_line_starts_a_block(start: str) -> None:
    assert rendered(escape(start)).startswith("<p>")


def test_a_hostile_run_stays_in_its_cells(tmp_path: Path) -> None:
    builder = RunBuilder(tmp_path / "run", Play().config)
    page = described(builder.finish("failed", reason=hostile, command=["python", hostile]))
    html = rendered(page)
    assert "<img" not in html
    assert "evil" in html
    assert not re.search(r"<a\b", html)


def test_a_run_that_left_nothing_is_described(tmp_path: Path) -> None:
    page = described(RunBuilder(tmp_path / "run").finish("failed", reason="out of memory"))
    assert "out of memory" in page
    assert "0 tok/s" not in page
