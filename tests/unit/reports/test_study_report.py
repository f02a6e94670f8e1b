from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.effort import Effort
from autotune.lessons.taught import learn
from autotune.machine import Machine
from autotune.result import StudyResult, load_study
from autotune.runner import Request
from autotune.search import SearchPlan, search
from autotune.space import Dimension, SearchSpace
from autotune.telemetry import Cause, Failed, FailureKind, Outcome, Telemetry
from dflash.contract.config import TrainConfig
from reports import text
from reports.study_report import write_report
from tests.html_outline import Outline
from tests.searched_study import InOrder

hostile = "[/red]</script><script>alert(1)</script><img src=x onerror=alert(2)>"
speeds = {"host": 5300.0, "shared": 9100.0, "peer": 14_800.0}
Runs = Callable[[TrainConfig], Outcome]


class PlayedRunner:
    """Measures what `runs` says, without running anything."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs

    def run(self, request: Request) -> Outcome:
        return self._runs(request.config)


def measured(tokens_per_s: float, **changes: object) -> Telemetry:
    told = {
        "tokens_per_s": tokens_per_s,
        "low": tokens_per_s * 0.99,
        "high": tokens_per_s * 1.01,
        "windows": 40,
        "steps": 45,
        "supervised_tokens": 10_000,
        "losses": tuple(4 - 0.01 * step for step in range(20)),
    }
    return Telemetry(**(told | changes))  # type: ignore[arg-type]


def presets_differ(config: TrainConfig) -> Outcome:
    """Peer copies are fastest, pinned ones fail, and one configuration trains something else."""
    if config.transport.preset == "pinned":
        return Failed(FailureKind.out_of_memory, f"CUDA out of memory {hostile}")
    if config.transport.preset == "shared":
        return measured(20_000, losses=tuple(9.0 for _ in range(20)))
    causes = (Cause(name="sync-d2h-on-critical-path", summary="targets copy themselves", remedy={}),)
    return measured(
        speeds[config.transport.preset], causes=causes if config.transport.preset == "host" else ()
    )


def run_study(path: Path, runs: Runs, *, trials: int = 4) -> StudyResult:
    base = TrainConfig().replacing({"transport.preset": "host", "pipeline.split": "1-2"})
    space = SearchSpace((Dimension("transport.preset", ("host", "shared", "pinned", "peer")),), base, 3)
    machine = Machine(cpu="a CPU <b>", cpus=2, gpu_reason="no driver")
    plan = SearchPlan(
        study_dir=path,
        space=space,
        machine=machine,
        effort=Effort(trials=trials, repeats=1),
        searcher=InOrder(),
    )
    return search(plan, PlayedRunner(runs), lambda event: None)


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> StudyResult:
    return run_study(tmp_path_factory.mktemp("studies") / "study <img src=x>", presets_differ)


@pytest.fixture(scope="module")
def page(result: StudyResult) -> str:
    return write_report(result, learn(result)).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def outline(page: str) -> Outline:
    return Outline(page)


def said(words: str) -> str:
    return " ".join(words.split())


def test_the_winner_is_said_with_its_gain_and_interval(outline: Outline, result: StudyResult) -> None:
    assert result.best is not None
    assert result.gain is not None
    sentence = (
        f"Trial {result.best.number} trains {result.gain.mid:.2f}× as fast as the starting configuration"
    )
    assert sentence in outline.text
    assert f"{result.gain.low:.2f}× to {result.gain.high:.2f}×" in outline.text
    assert "--set transport.preset=peer" in outline.text
    for line in result.why:
        assert said(line) in outline.text


def test_the_table_has_every_comparable_configuration_with_interval_and_speed_up(
    outline: Outline, result: StudyResult
) -> None:
    assert len(result.standings) == 2
    for standing in result.standings:
        rate = standing.tokens_per_s
        assert said(text.rate(rate.mid)) in outline.text
        assert said(text.rate_range(rate.low, rate.high)) in outline.text
    assert "trial 0, starting configuration" in outline.text
    assert result.gains[result.standings[0].trial.number] == result.gain
    assert sum(a.get("class") == "best" for a in outline.all("tr")) == 2, (
        "in the contest and in the trade-offs"
    )


def test_the_chart_has_every_trial_and_zero_for_none(outline: Outline, result: StudyResult) -> None:
    spec = outline.chart_specs()["trials"]
    drawn = {trace["name"]: trace for trace in spec["data"]}
    assert sorted(n for trace in spec["data"] for n in trace["x"]) == [t.number for t in result.trials]
    assert drawn["failed"]["yaxis"] == "y2"
    assert all(y > 0 for name, trace in drawn.items() if name != "failed" for y in trace["y"])
    assert set(drawn) == {"recommended", "starting configuration", "measured, but unhealthy", "failed"}


def test_failed_and_unhealthy_trials_say_why(outline: Outline, result: StudyResult) -> None:
    assert "Failed: 1 trial" in outline.text
    assert said(f"CUDA out of memory {hostile}") in outline.text
    unhealthy = next(trial.unhealthy for trial in result.trials if trial.unhealthy)
    assert said(unhealthy) in outline.text


def test_where_it_stopped_and_what_to_train_with_are_there(outline: Outline, result: StudyResult) -> None:
    assert said(result.stop[1:]) in outline.text
    assert said(result.best_config_toml() or "?") in outline.text


def test_emulated_is_said(outline: Outline) -> None:
    assert "emulated: logical devices" in outline.text[: outline.text.index("Verdict")]


def test_names_stay_text_and_nothing_is_loaded(page: str, outline: Outline) -> None:
    assert outline.problems == []
    assert not outline.all("img")
    assert len(outline.scripts) == len(outline.chart_specs()) + 2
    assert "study <img src=x>" in outline.text
    assert "<img" not in str(outline.chart_specs())
    for _, attributes in outline.elements:
        assert not any(re.match(r"(https?:)?//", value or "") for value in attributes.values())
    assert sum(len(body) > 1_000_000 for _, body in outline.scripts) == 1
    assert len(page.encode()) < 6_000_000


def write_stored(study: Path, out: Path | None = None) -> Path:
    """The report of a study as it lies on the disk."""
    result = load_study(study)
    return write_report(result, learn(result), out)


def test_the_start_stands_when_nothing_is_faster(tmp_path: Path) -> None:
    result = run_study(tmp_path / "study", lambda config: measured(1000), trials=3)
    outline = Outline(write_stored(tmp_path / "study").read_text(encoding="utf-8"))
    assert result.verdict == "equal"
    assert "Keep the starting configuration" in outline.text
    assert "Nothing needs to change." in outline.text


def test_a_study_of_failures_recommends_nothing_and_invents_no_number(tmp_path: Path) -> None:
    study = tmp_path / "failed"
    result = run_study(study, lambda config: measured(500, steps=0, losses=()), trials=2)
    outline = Outline(write_stored(study).read_text(encoding="utf-8"))
    assert result.verdict == "none"
    assert "No configuration can be recommended." in outline.text
    assert "recommended n/a" in outline.text
    assert "n/a: no trial was measured and healthy" in outline.text


def test_the_report_of_a_study_goes_where_it_is_wanted(result: StudyResult, tmp_path: Path) -> None:
    out = tmp_path / "x.html"
    assert write_stored(result.study_dir, out) == out
    page = Outline(out.read_text(encoding="utf-8"))
    assert page.problems == []
    assert "study <img src=x>" in page.text
    stored = load_study(result.study_dir)
    assert [trial.to_json() for trial in stored.trials] == [trial.to_json() for trial in result.trials]
