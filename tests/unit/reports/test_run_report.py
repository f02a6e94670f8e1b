from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from dflash.contract.errors import RunError
from dflash.contract.rundir import RunDir
from profiler.examination import examine
from profiler.finding import Diagnosis
from reports import text
from reports.run_report import write_run_report
from tests.html_outline import Outline
from tests.played_pipeline import Play, play
from tests.run_builder import RunBuilder

hostile = "[/red]</script><script>alert(1)</script><img src=x onerror=alert(2)>"


@pytest.fixture(scope="module")
def run_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two targets that copy on their own time to one drafter."""
    path = tmp_path_factory.mktemp("runs") / "copying"
    return play(path, targets=2, preset="host", target_copy_s=0.5, drafter_copy_s=0.05, windows=30)


@pytest.fixture(scope="module")
def page(run_path: Path) -> str:
    return write_run_report(examine(run_path)).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def outline(page: str) -> Outline:
    return Outline(page)


@pytest.fixture(scope="module")
def diagnosis(run_path: Path) -> Diagnosis:
    return examine(run_path).diagnosis


def report_of(path: Path) -> Outline:
    return Outline(write_run_report(examine(path)).read_text(encoding="utf-8"))


def test_the_report_lies_in_the_run_or_where_it_is_wanted(run_path: Path, page: str, tmp_path: Path) -> None:
    assert RunDir(run_path).report_path.exists()
    out = tmp_path / "elsewhere.html"
    assert write_run_report(examine(run_path), out) == out
    assert out.read_text(encoding="utf-8") == page


def test_the_verdict_comes_first_with_reason_and_next_step(outline: Outline, diagnosis: Diagnosis) -> None:
    words = outline.text
    assert diagnosis.primary is not None
    assert diagnosis.primary.remedy is not None
    remedy = diagnosis.primary.remedy.text  # its settings stand below it, to copy
    said = (diagnosis.headline, diagnosis.why, diagnosis.numbers, remedy, "--set transport.preset=peer")
    places = [words.index(part) for part in said]
    assert places == sorted(places)
    assert "Try: --set" not in words
    assert places[0] < 600 + words.index("copying")


def test_the_numbers_shown_are_those_of_the_diagnosis(outline: Outline, diagnosis: Diagnosis) -> None:
    measured, capacities = diagnosis.throughput, diagnosis.capacities
    words = outline.text
    for said in (
        text.rate(measured.tokens_per_s),
        text.rate_range(measured.low, measured.high),
        text.share(capacities.pipeline_efficiency),
        text.rate(capacities.targets_alone),
        text.rate(capacities.drafters_alone),
        text.count_of(measured.windows_used, "window"),
    ):
        assert " ".join(said.split()) in words
    bars = {trace["y"][0]: trace["x"][0] for trace in outline.chart_specs()["rates"]["data"]}
    assert bars["measured"] == pytest.approx(measured.tokens_per_s)
    assert bars["targets alone"] == pytest.approx(capacities.targets_alone)


def test_every_cause_is_listed_with_its_verdict_and_all_its_evidence(
    outline: Outline, diagnosis: Diagnosis
) -> None:
    assert diagnosis.findings
    for finding in diagnosis.findings:
        assert finding.cause in outline.text
        for evidence in finding.evidence:
            assert " ".join(f"{evidence.name} {evidence.text}".split()) in outline.text


def test_the_remedy_can_be_copied(outline: Outline, diagnosis: Diagnosis) -> None:
    primary = diagnosis.primary
    assert primary is not None
    assert primary.remedy is not None
    for path, value in primary.remedy.knobs.items():
        assert f"--set {path}={value}" in outline.text


def test_closing_sums_of_all_threads_end_at_a_hundred(outline: Outline, diagnosis: Diagnosis) -> None:
    traces = outline.chart_specs()["threads"]["data"]
    for position in range(len(diagnosis.closing_sums)):
        assert sum(trace["x"][position] for trace in traces) == pytest.approx(100, abs=0.01)
    assert outline.text.count("100 %,") >= len(diagnosis.closing_sums)


def test_the_map_shows_every_stage_and_queue(outline: Outline) -> None:
    titles = ("prefetch", "q_pre", "target 0", "target 1", "transport", "q_hs", "drafter 0", "optimizer")
    places = [outline.text.index(f"{title}: ") for title in titles]
    assert places == sorted(places)


def test_the_page_is_sound_html_with_headings_captions_and_words_for_pictures(outline: Outline) -> None:
    assert outline.problems == []
    ids = outline.ids()
    assert len(ids) == len(set(ids))
    assert len(outline.all("h1")) == 1
    assert len(outline.all("caption")) == len(outline.all("table"))
    for element in ("section", "svg"):
        for attributes in outline.all(element):
            for target in (attributes.get("aria-labelledby") or "").split():
                assert target in ids
    charts = [a for a in outline.all("div") if a.get("class") == "chart"]
    assert len(charts) == 4
    assert all(a["role"] == "img" and re.search(r"\d", a["aria-label"] or "") for a in charts)
    assert {a["href"] for a in outline.all("a")} <= {f"#{name}" for name in ids}


def test_the_page_needs_nothing_from_outside(page: str, outline: Outline) -> None:
    for _, attributes in outline.elements:
        for name in ("src", "href", "action", "data", "poster", "srcset"):
            assert not re.match(r"\s*(https?:)?//", attributes.get(name) or "")
    assert "@import" not in page.split("<body>")[0]
    policy = next(a for a in outline.all("meta") if a.get("http-equiv") == "Content-Security-Policy")
    assert (policy["content"] or "").startswith("default-src 'none'")
    assert not outline.all("link")


def test_plotly_is_in_the_page_once_and_the_page_is_small(page: str, outline: Outline) -> None:
    assert sum(len(body) > 1_000_000 for _, body in outline.scripts) == 1
    assert len(page.encode()) < 6_000_000


@pytest.mark.parametrize(("emulated", "said"), [(True, True), (None, True), (False, False)])
def test_emulated_is_said_where_it_is_or_may_be(tmp_path: Path, emulated: bool | None, said: bool) -> None:
    words = report_of(play(tmp_path / "run", emulated=emulated, windows=12)).text
    head = words[: words.index("Verdict")]
    assert ("emulated" in head) is said


def test_hostile_names_stay_text(tmp_path: Path, outline: Outline) -> None:
    builder = RunBuilder(tmp_path / "run <img src=x onerror=alert(3)>", Play().config, emulated=True)
    for w in range(14):
        builder.span("target", 0, hostile, w, w + 0.5, channel=hostile, device=hostile)
        builder.span("drafter", 0, "copy", w, w + 0.5, path=hostile, src=hostile, dst=hostile, bytes=9)
        builder.gauge("target", 0, "depth", w, 1.0, channel=f"q_hs.{hostile}")
        builder.window(w, w + 0.9, 1000, loss=1.0)
        builder.sample("gpu", hostile, "util_pct", w, 50.0)
    builder.sample("gpu", hostile, "power_w", 0, None, hostile)
    path = builder.finish(
        "failed",
        reason=hostile,
        command=["python", hostile],
        versions={hostile: hostile},
        devices=[{"name": hostile, "role": "target", "index": 0, "uuid": hostile}],
        config={hostile: hostile, "transport.preset": hostile},
    )
    attacked = report_of(path)
    assert attacked.problems == []
    assert len(attacked.scripts) == len(outline.scripts)
    assert not attacked.all("img")
    assert not any(name.startswith("on") for _, attributes in attacked.elements for name in attributes)
    assert hostile in attacked.text
    specs = str(attacked.chart_specs())
    assert "<img" not in specs
    assert "&lt;img" in specs


def test_control_characters_are_shown_as_escapes(tmp_path: Path) -> None:
    builder = RunBuilder(tmp_path / "run", Play().config)
    path = builder.finish("failed", reason="a\x1b[31mred\x00")
    page = write_run_report(examine(path)).read_text(encoding="utf-8")
    assert "\x1b" not in page
    assert "\x00" not in page
    assert "a\\x1b[31mred\\x00" in page


def test_a_gap_of_a_sensor_stays_a_gap_and_a_missing_one_says_why(tmp_path: Path) -> None:
    builder = RunBuilder(tmp_path / "run", Play().config)
    for tick in range(200):
        if not 80 <= tick < 120:
            builder.sample("gpu", "GPU-1", "util_pct", tick / 2, 90.0)
    builder.sample("gpu", "GPU-1", "util_pct", 100.5, None, "the driver failed to answer")
    builder.sample("gpu", "GPU-1", "power_w", 0, None, "not supported by this GPU")
    outline = report_of(builder.finish())
    (trace,) = (t for t in outline.chart_specs()["time"]["data"] if "name" in t)
    values = np.array(trace["y"], dtype=float)
    assert np.isnan(values).sum() == 1
    assert set(values[np.isfinite(values)]) == {90.0}
    inside = [y for x, y in zip(trace["x"], trace["y"], strict=True) if 40 <= x < 60]
    assert inside == [None]
    assert "1 unreadable value left out" in outline.text
    assert "GPU power n/a: not supported by this GPU" in outline.text
    assert "Host memory n/a: the run was not recorded with the host sampler" in outline.text


def test_too_few_windows_are_no_number(tmp_path: Path) -> None:
    outline = report_of(play(tmp_path / "run", windows=4))
    assert "n/a: 3 whole windows were seen; at least 10 are needed" in outline.text
    assert "0 tok/s" not in outline.text


def test_a_run_that_left_nothing_still_has_a_page(tmp_path: Path) -> None:
    outline = report_of(RunBuilder(tmp_path / "run").finish("failed", reason="out of memory"))
    assert outline.problems == []
    assert "out of memory" in outline.text
    assert "n/a: the run holds no spans of stage threads" in outline.text


def test_provenance_has_command_versions_and_the_changed_settings(run_path: Path, outline: Outline) -> None:
    assert "dflash-train run" in outline.text
    assert str(run_path) in outline.text
    changed = [a for a in outline.all("li") if a.get("class") == "changed"]
    assert any("queue" in (a.get("title") or "") for a in changed)


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="not a run directory"):
        write_run_report(examine(tmp_path))
