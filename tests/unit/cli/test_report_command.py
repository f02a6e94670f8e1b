"""`dflash-profile report` writes a page or Markdown, and says what it cannot write."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from profiler.finding import Diagnosis
from tests.played_pipeline import play

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return play(tmp_path / "r", targets=2, preset="host", target_copy_s=0.5, windows=12)


def test_the_page_has_its_findings_beside_it(call: Call, run: Path) -> None:
    code, out, _ = call("dflash-profile", "report", str(run))
    assert code == 0
    assert Path(out.strip()) == run / "report.html"
    assert Diagnosis.load(run).findings
    json.loads((run / "findings.json").read_text(), parse_constant=pytest.fail)


def test_a_page_elsewhere_leaves_the_run_as_it_is(call: Call, run: Path, tmp_path: Path) -> None:
    before = sorted(path.name for path in run.iterdir())
    assert call("dflash-profile", "report", str(run), "--out", str(tmp_path / "page.html"))[0] == 0
    assert sorted(path.name for path in run.iterdir()) == before


def test_markdown_goes_to_stdout_or_into_a_file(call: Call, run: Path, tmp_path: Path) -> None:
    code, out, _ = call("dflash-profile", "report", str(run), "--format", "md")
    assert code == 0
    assert out.startswith("## r: ")
    assert "| cause | predicted cost |" in out
    page = tmp_path / "issue.md"
    code, told, _ = call("dflash-profile", "report", str(run), "--format", "md", "--out", str(page), "--json")
    assert code == 0
    assert json.loads(told) == {"run": str(run), "report": str(page), "markdown": None}
    assert page.read_text(encoding="utf-8").strip() == out.strip()


def test_a_picture_is_refused_with_what_to_do_instead(call: Call, run: Path) -> None:
    """C086: no browser is needed for a page; asking for a picture says what is missing, at once."""
    code, _, err = call("dflash-profile", "report", str(run), "--format", "png")
    assert code == 2
    assert "html or md" in err
    assert "browser" in err
    assert "Traceback" not in err
