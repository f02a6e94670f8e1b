"""The limit of a run on known GPUs as its report and its Markdown show it."""

from __future__ import annotations

from pathlib import Path

import pytest

from dflash.contract.operations import Operations, Part
from dflash.contract.rundir import RunDir
from profiler.examination import Examination, examine
from reports.run_markdown import describe_run
from reports.run_report import write_run_report
from tests.html_outline import Outline
from tests.played_pipeline import play

operations = Operations(
    parts=(
        Part(stage="target", name="matrix products", per_token=13e9, why="2 × weights"),
        Part(stage="drafter", name="blocks", per_token=20e9, why="6 × weights"),
    ),
    dtype_bytes={"target": 2, "drafter": 2},
    weight_bytes={"target": 13_000_000, "drafter": 4_000_000},
    step_bytes=31_000_000_000,
    state_bytes=40_960,
)


@pytest.fixture(scope="module")
def examined(tmp_path_factory: pytest.TempPathFactory) -> Examination:
    """Two targets and a drafter on three H200: 6,000 tokens a window."""
    path = tmp_path_factory.mktemp("runs") / "gpus"
    play(path, targets=2, windows=24, emulated=False)
    devices = [
        {"name": f"cuda:{i}", "role": "target" if i < 2 else "drafter", "index": i % 2,
         "model": "NVIDIA H200", "uuid": f"GPU-{i}"}
        for i in range(3)
    ]  # fmt: skip
    RunDir(path).update(devices=devices, operations=operations.to_json())
    return examine(path)


def test_the_report_leads_to_the_limit_and_says_where_it_comes_from(examined: Examination) -> None:
    outline = Outline(write_run_report(examined).read_text(encoding="utf-8"))
    words = outline.text.replace("\u00a0", " ")
    # Three GPUs with both roles: (6,000 × 33 GFLOP ÷ 790 TFLOP/s + 31 GB ÷ 4.8 TB/s) ÷ 3 = 85.7 ms.
    assert "limit of the devices – 70.0 Ktok/s" in words
    assert "kernels below the ceilings +" in words
    assert "split colocated-3, the best of 3 GPUs +" in words
    assert "790 TFLOP/s in bfloat16 products" in words
    assert "MFU" in words
    # 2,000 tokens a second, as played.
    target = next(mark for mark in examined.diagnosis.limit.marks if mark.stage == "target")
    assert target.tflops == pytest.approx(26.0, rel=0.05)
    assert f"targets (2 GPUs) 13.0 GFLOP {target.tflops:.1f} TFLOP/s 1.6 %" in words
    assert outline.problems == []
    assert "limit of the devices | 70.0" in describe_run(examined)


def test_a_run_on_logical_devices_says_why_it_has_none(tmp_path: Path) -> None:
    examined = examine(play(tmp_path / "run", windows=12))
    words = Outline(write_run_report(examined).read_text(encoding="utf-8")).text.replace("\u00a0", " ")
    assert "limit of the devices: n/a: logical devices have no ceilings" in words
    assert "MFU" not in words
