"""The GIL is named by measured waits and rejected by number: a plausible sum is no evidence."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from profiler.diagnosis import diagnose
from profiler.finding import Diagnosis, Finding
from profiler.rules.gil_contention import check, other_process
from profiler.run import Run
from profiler.timeline import Timeline
from tests.gil_samples import Shares, add_gil, stages
from tests.played_pipeline import play

recorded_hog = Path(__file__).parents[2] / "data" / "runs" / "gil_hog"


def everywhere(share: float, targets: int = 3) -> Shares:
    """All stage threads wait the same, and a thread that is no stage does so too."""
    tids = [stages["prefetch"], *(stages["target"] + i for i in range(targets)), stages["drafter"], 5000]
    return dict.fromkeys(tids, share)


def diagnosed(
    tmp_path: Path, waits: Shares, settings: dict[str, Any] | None = None, **facts: Any
) -> Diagnosis:
    path = play(tmp_path / "run", **(settings or {}))
    return diagnose(Timeline.of(Run.open(add_gil(path, waits, **facts))))


def gil_of(diagnosis: Diagnosis) -> Finding:
    return next(finding for finding in diagnosis.findings if finding.cause == "gil-contention")


def value(finding: Finding, name: str) -> float | None:
    return next(item.value for item in finding.evidence if item.name == name)


def test_waits_for_the_gil_are_named_with_their_numbers(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, everywhere(0.55))
    finding = gil_of(diagnosis)
    assert diagnosis.primary is finding
    assert value(finding, "targets waiting for the GIL") == pytest.approx(0.55, abs=0.03)
    assert value(finding, "threads that wait for it") == 6
    assert value(finding, "cores in use by them") == pytest.approx(1.8, abs=0.1)
    assert value(finding, "time some thread holds it") == pytest.approx(0.9)
    assert finding.measured_cost_share == pytest.approx(0.55, abs=0.06)
    assert finding.remedy is not None
    assert "spin-1" in finding.remedy.text


def test_waits_alone_are_enough_and_the_remedy_says_how_to_name_the_line(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, everywhere(0.55), holder=None)  # no py-spy beside the run
    finding = gil_of(diagnosis)
    assert diagnosis.primary is finding
    assert finding.verdict == "supported"
    held = next(item for item in finding.evidence if item.name == "time some thread holds it")
    assert held.value is None
    assert str(held.reason).startswith("switched off: `dflash-profile holder")
    assert finding.remedy is not None
    assert "dflash-profile holder RUN" in finding.remedy.text


def test_a_stage_that_holds_it_is_not_to_be_moved_elsewhere(tmp_path: Path) -> None:
    remedy = gil_of(diagnosed(tmp_path, everywhere(0.55), holder="target-0")).remedy
    assert remedy is not None
    assert "target-0" not in remedy.text


@pytest.mark.parametrize(("asked_ms", "knobs"), [(5.0, {"pipeline.switch_interval_ms": 0.1}), (0.1, {})])
def test_a_holder_that_is_asked_late_is_to_be_asked_sooner(
    tmp_path: Path, asked_ms: float, knobs: dict[str, float]
) -> None:
    timeline = Timeline.of(Run.open(add_gil(play(tmp_path / "run"), everywhere(0.55))))
    assert timeline.config is not None
    config = timeline.config.replacing({"pipeline.switch_interval_ms": asked_ms})
    (finding,) = check(dataclasses.replace(timeline, config=config))
    remedy = finding.remedy
    assert remedy is not None
    assert remedy.knobs == knobs
    assert ("after 5 ms: ask sooner" in remedy.text) == bool(knobs)


def test_the_busiest_thread_that_is_no_stage_is_pointed_to(tmp_path: Path) -> None:
    facts = {"holder": "target-0", "cpu": 0.3, "ready": 0.25}
    finding = gil_of(diagnosed(tmp_path / "busy", everywhere(0.55), **facts))
    assert value(finding, "CPU of thread 5000 (python), which is no stage") == pytest.approx(0.3, abs=0.01)
    assert finding.remedy is not None
    assert finding.remedy.text.startswith("Thread 5000 (python), which is no stage, uses 30 % of a core")
    idle = gil_of(diagnosed(tmp_path / "idle", everywhere(0.55), **facts | {"ready": 0.1}))
    assert not any("5000" in item.name for item in idle.evidence)
    stages_only = {tid: share for tid, share in everywhere(0.55).items() if tid != 5000}
    alone = gil_of(diagnosed(tmp_path / "alone", stages_only, **facts))
    assert not any("no stage" in item.name for item in alone.evidence)


def test_a_healthy_run_with_a_few_percent_stays_healthy(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, everywhere(0.04))
    assert diagnosis.primary is not None
    assert diagnosis.primary.cause == "target-bound-healthy"
    assert gil_of(diagnosis).verdict == "rejected"


def test_a_copy_on_the_targets_path_is_not_called_gil(tmp_path: Path) -> None:
    copying = {"preset": "host", "depth": 2, "target_copy_s": 1.0}
    diagnosis = diagnosed(tmp_path, everywhere(0.02), copying)
    assert diagnosis.primary is not None
    assert diagnosis.primary.cause == "sync-d2h-on-critical-path"
    finding = gil_of(diagnosis)
    assert finding.verdict == "rejected"
    assert "of the throughput" in finding.summary
    assert value(finding, "targets waiting for the GIL") == pytest.approx(0.02, abs=0.01)


def test_where_nobody_waits_nothing_is_said_of_those_who_do(tmp_path: Path) -> None:
    finding = gil_of(diagnosed(tmp_path, everywhere(0.0)))
    assert value(finding, "threads that wait for it") == 0
    unknown = {item.name: item.reason for item in finding.evidence if item.value is None}
    assert unknown["cores in use by them"] == "no thread waits for it"
    assert unknown["these threads waiting for a CPU"] == "no thread waits for it"


def test_drafters_that_wait_for_it_while_targets_limit_cost_nothing(tmp_path: Path) -> None:
    finding = gil_of(diagnosed(tmp_path, {300: 0.0, 301: 0.0, 302: 0.0, 400: 0.1, 5000: 0.6}))
    assert finding.measured_cost_share == pytest.approx(0.0, abs=0.01)
    assert finding.verdict == "rejected"


@pytest.mark.parametrize(
    ("facts", "words"),
    [({"ready": 0.6}, "wait for a CPU"), ({"cpu": 0.8}, "side by side")],
)
def test_what_else_explains_the_waits_rejects_it(tmp_path: Path, facts: dict[str, Any], words: str) -> None:
    """C116."""
    finding = gil_of(diagnosed(tmp_path, everywhere(0.35), **facts))
    assert finding.verdict == "rejected"
    assert words in finding.summary


def test_larger_copies_reject_it(tmp_path: Path) -> None:
    copying = {"preset": "host", "depth": 2, "target_copy_s": 1.0}
    finding = gil_of(diagnosed(tmp_path, everywhere(0.3), copying))
    assert finding.verdict == "rejected"
    assert "copies take" in finding.summary


def test_without_samples_there_is_no_verdict_and_the_reason_is_said(tmp_path: Path) -> None:
    diagnosis = diagnose(Timeline.of(Run.open(play(tmp_path / "run"))))
    finding = gil_of(diagnosis)
    assert finding.verdict == "not_enough_evidence"
    assert "not sampled" in finding.summary
    assert diagnosis.primary is not None
    assert diagnosis.primary.cause == "target-bound-healthy"


def test_another_process_than_that_of_the_stages_says_nothing(tmp_path: Path) -> None:
    finding = gil_of(diagnosed(tmp_path, {9001: 0.5, 9002: 0.5}))
    assert finding.verdict == "not_enough_evidence"
    assert other_process in finding.summary


def test_every_closing_sum_still_adds_up_with_the_gil_in_it(tmp_path: Path) -> None:
    for closing in diagnosed(tmp_path, everywhere(0.3)).closing_sums:
        assert sum(part.seconds for part in closing.parts) == pytest.approx(closing.range_s, abs=1e-6)
        waited = [part.share for part in closing.parts if part.kind == "gil_wait"]
        if closing.stage == "target":
            assert waited == [pytest.approx(0.3, abs=0.02)]
        worked = sum(part.share for part in closing.parts if part.kind == "work")
        assert sum(waited) <= 0.3 + 0.02
        assert worked >= 0


def test_a_recorded_hog_on_a_quiet_machine_is_named_first() -> None:
    """A planted thread of pure Python, recorded where stages had cores (docs/fault-injection.md)."""
    diagnosis = diagnose(Timeline.of(Run.open(recorded_hog)))
    finding = gil_of(diagnosis)
    assert diagnosis.primary is finding
    assert finding.measured_cost_share == pytest.approx(0.26, abs=0.02)
    assert value(finding, "these threads waiting for a CPU") == pytest.approx(0.05, abs=0.02)
