from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from dflash.contract.rundir import RunDir
from profiler.comparison import Comparison, compare
from profiler.run import Run
from reports.change_chart import Move, draw_changes
from reports.comparison_report import render_comparison, write_comparison_report
from reports.comparison_rows import list_stages
from tests.html_outline import Outline
from tests.played_pipeline import play

hostile = "[/red]</script><script>alert(1)</script><img src=x onerror=alert(2)>"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("runs")
    settings: dict[str, Any] = {"windows": 24, "targets": 2, "batches_per_window": 4}
    changes: dict[str, dict[str, Any]] = {
        "before": {},
        "after": {"drafter_copy_s": 0.9, "seed": 1},
        "short": {"windows": 5},
    }
    for name, changed in changes.items():
        play(base / name, **{**settings, **changed})
        RunDir(base / name).update(workload={"data.seed": 0})
    return base


@pytest.fixture(scope="module")
def slower(runs: Path) -> Comparison:
    return compare(Run.open(runs / "before"), Run.open(runs / "after"), limit=0.03)


def test_the_verdict_the_noise_and_what_moved_are_said(slower: Comparison, tmp_path: Path) -> None:
    path = write_comparison_report(slower, tmp_path / "compare.html")
    outline = Outline(path.read_text(encoding="utf-8"))
    assert outline.text.index("before → after") < outline.text.index(slower.verdict)
    assert "1 is outside of the interval" in outline.text
    assert "Beyond noise, the largest first: the drafters' copies (pageable) grew from" in outline.text
    assert "The gate of 3 % ends with 3: B is slower by more than the limit" in outline.text
    assert "emulated: logical devices" in outline.text


def test_every_visible_part_has_its_row_and_its_bar(slower: Comparison) -> None:
    outline = Outline(render_comparison(slower))
    rows = list_stages(slower.stages)
    assert ("drafter", "copy pageable") in [(row.stage, row.part) for row in rows if row.told]
    (spec,) = (json.loads(body) for tag, body in outline.scripts if tag.get("id") == "chart-changes-spec")
    assert [trace["y"] for trace in spec["data"]] == [[f"{row.stage}: {row.part}"] for row in rows]
    copies = next(trace for trace in spec["data"] if trace["y"] == ["drafter: copy pageable"])
    wait = next(trace for trace in spec["data"] if trace["y"] == ["drafter: get q_hs"])
    assert copies["x"][0] > 0 > wait["x"][0]


def test_a_run_against_itself_is_equal_and_nothing_is_told(runs: Path) -> None:
    page = render_comparison(compare(Run.open(runs / "before"), Run.open(runs / "before")))
    assert "equal within noise" in page
    assert "1 is within the interval" in page
    assert "Beyond noise, the largest first" not in page


def test_too_short_a_run_has_a_page_that_says_so(runs: Path) -> None:
    words = Outline(render_comparison(compare(Run.open(runs / "before"), Run.open(runs / "short")))).text
    assert "not enough data" in words
    assert "There is no ratio: B: " in words
    assert "Record longer runs." in words
    assert not re.search(r"\bnan\b|\bNone\b(?!\.)", words)


def test_names_are_text(slower: Comparison) -> None:
    (bar,) = draw_changes(
        [Move(name=hostile, role="work", seconds=1, low=0.5, high=2, beyond_noise=True)], ""
    ).spec["data"]
    assert "<" not in bar["y"][0]


def test_what_is_within_noise_is_pale_and_says_so() -> None:
    moves = [
        Move(name=name, role="copy", seconds=-0.002, low=-0.004, high=high, beyond_noise=high < 0)
        for name, high in (("sure", -0.001), ("unsure", 0.001))
    ]
    chart = draw_changes(moves, "for 1,000 tokens")
    sure, unsure = (trace["marker"]["opacity"] for trace in chart.spec["data"])
    assert sure > unsure
    assert "sure −2.00\u00a0ms; unsure −2.00\u00a0ms (within noise)" in chart.caption
    assert chart.spec["data"][0]["x"] == [-2.0]
