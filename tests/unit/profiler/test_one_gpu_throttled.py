"""A throttled straggler among healthy GPUs is named with its figures and its price, and not called idle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from profiler.diagnosis import diagnose
from profiler.finding import Diagnosis, Finding
from profiler.run import Run
from profiler.timeline import Timeline
from tests.gpu_readings import cases, listed, watch
from tests.played_pipeline import play
from tests.run_builder import RunBuilder

c070 = cases / "c070_throttled_straggler.json"
cause = "one-gpu-throttled"
slow = {1: 1700 / 780}


def diagnosed(path: Path) -> Diagnosis:
    return diagnose(Timeline.of(Run.open(path)))


def finding_of(diagnosis: Diagnosis) -> Finding:
    (found,) = [finding for finding in diagnosis.findings if finding.cause == cause]
    return found


def straggling(tmp_path: Path, file: Path = c070, *, order: list[int] | None = None, **settings: Any) -> Path:
    play_settings = {"targets": 3, "slower_targets": slow, "windows": 24, "emulated": False, **settings}
    path = play(tmp_path / "run", **play_settings)
    watch(path, file, devices=listed(c070, order), seconds=120)
    return path


def changed(tmp_path: Path, **changes: Any) -> Path:
    data = json.loads(c070.read_text())
    for entry in data["gpus"][:3]:
        entry |= {key: value for key, value in changes.items() if key != "second"}
    data["gpus"][1] |= changes.get("second", {})
    path = tmp_path / "case.json"
    path.write_text(json.dumps(data))
    return path


def test_straggler_is_the_primary_cause_with_its_figures_and_price(tmp_path: Path) -> None:
    diagnosis = diagnosed(straggling(tmp_path))
    finding = finding_of(diagnosis)
    assert diagnosis.primary is finding
    assert finding.summary.startswith(
        "cuda:1 target 1 is held down (780 MHz, thermal (hardware), 93 °C, 310 of 600 W) while its siblings "
        "run at 1700 MHz and 589 W"
    )
    assert "idle" not in finding.summary
    # Three targets at 1 + 1 + 780/1700 of a pace, against three at 1.
    assert finding.measured_cost_share == pytest.approx(1 - (2 + 780 / 1700) / 3, abs=0.04)
    lost = {item.name: item.value for item in finding.evidence}["tokens/s lost"]
    now = diagnosis.throughput.tokens_per_s
    assert lost is not None
    assert now is not None
    assert lost == pytest.approx(now * (3 / (2 + 780 / 1700) - 1), rel=0.15)
    assert "tokens/s" in finding.summary


def test_permuted_devices_name_the_right_gpu(tmp_path: Path) -> None:
    # CUDA's device 2 is the throttled card; the same target's stage is slow.
    path = straggling(tmp_path, order=[0, 2, 1, 3], slower_targets={2: 1700 / 780})
    finding = finding_of(diagnosed(path))
    assert finding.supported
    assert finding.summary.startswith("cuda:2 target 2 is held down (780 MHz")


def test_it_costs_nothing_where_drafters_are_the_limit(tmp_path: Path) -> None:
    finding = finding_of(diagnosed(straggling(tmp_path, backward_s=3.0)))
    assert finding.verdict == "rejected"
    assert finding.measured_cost_share == pytest.approx(0, abs=0.02)


def test_equal_clocks_are_no_finding(tmp_path: Path) -> None:
    file = changed(tmp_path, sm_clock_mhz=1700, throttle_reasons=4)
    finding = finding_of(diagnosed(straggling(tmp_path, file, slower_targets={})))
    assert finding.verdict == "rejected"


def test_low_clock_that_nothing_holds_down_is_rejected(tmp_path: Path) -> None:
    finding = finding_of(
        diagnosed(straggling(tmp_path, changed(tmp_path, second={"throttle_reasons": 0, "temp_c": 70})))
    )
    assert finding.verdict == "rejected"
    assert "names nothing" in finding.summary


def test_a_hot_one_that_no_reason_is_told_of_is_named_with_less_confidence(tmp_path: Path) -> None:
    sure = finding_of(diagnosed(straggling(tmp_path / "a")))
    hot = finding_of(
        diagnosed(straggling(tmp_path / "b", changed(tmp_path, second={"throttle_reasons": 0, "temp_c": 93})))
    )
    assert hot.supported
    assert hot.confidence < sure.confidence


def test_unknown_reason_lowers_confidence_and_is_said(tmp_path: Path) -> None:
    sure = finding_of(diagnosed(straggling(tmp_path / "a")))
    unknown = {"error": "NVML_ERROR_NOT_SUPPORTED"}
    file = changed(tmp_path, second={"throttle_reasons": unknown, "temp_c": unknown, "power_mw": unknown})
    finding = finding_of(diagnosed(straggling(tmp_path / "b", file)))
    assert finding.supported
    assert finding.confidence < sure.confidence
    assert "(780 MHz, reason unknown)" in finding.summary


def test_gpu_without_work_is_no_straggler(tmp_path: Path) -> None:
    file = changed(tmp_path, second={"util_gpu": 3})
    assert finding_of(diagnosed(straggling(tmp_path, file))).verdict == "rejected"


def test_straggler_is_named_also_where_its_price_is_unknown(tmp_path: Path) -> None:
    path = RunBuilder(tmp_path / "run").finish()  # a command that tells nothing
    watch(path, c070, environ={"CUDA_VISIBLE_DEVICES": "3,2,1,0"}, seconds=5)
    finding = finding_of(diagnosed(path))
    assert finding.verdict == "not_enough_evidence"
    assert finding.summary.startswith(
        "cuda:2 is held down (780 MHz, thermal (hardware), 93 °C, 310 of 600 W)"
    )
    assert "Not judged" in finding.summary


@pytest.mark.parametrize(("emulated", "words"), [(True, "logical devices"), (False, "no clocks were read")])
def test_without_clocks_it_is_not_judged(tmp_path: Path, emulated: bool, words: str) -> None:
    finding = finding_of(diagnosed(play(tmp_path / "run", emulated=emulated)))
    assert finding.verdict == "not_enough_evidence"
    assert words in finding.summary
