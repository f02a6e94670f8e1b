from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dflash.contract.ceilings import DeviceCeilings
from profiler.capacity import measure_loads
from profiler.diagnosis import diagnose
from profiler.finding import Diagnosis
from profiler.hardware_limit import Limit, StageMark
from profiler.run import Run
from profiler.timeline import Timeline
from reports.run_waterfall import explain_limit, mark_rows, step_to_limit
from reports.waterfall import Step
from tests.played_pipeline import play

unknown = Limit(reason="logical devices have no ceilings")


def steps_of(path: Path, limit: Limit = unknown, **settings: Any) -> tuple[Diagnosis, tuple[Step, ...]]:
    timeline = Timeline.of(Run.open(play(path, **settings)))
    diagnosis = diagnose(timeline)
    loads = measure_loads(timeline)
    return diagnosis, step_to_limit(diagnosis.throughput, diagnosis.capacities, loads, limit)


@pytest.mark.parametrize(
    ("settings", "end", "largest"),
    [
        ({"targets": 2, "preset": "host", "target_copy_s": 0.5}, "targets alone", "own copies via host"),
        (
            {"targets": 3, "backward_s": 0.6, "drafter_copy_s": 0.3, "preset": "host"},
            "drafters alone",
            "own copies via host",
        ),
        ({"targets": 2, "pack_s": 0.9}, "targets alone", "waits: prefetch"),
    ],
)  # fmt: skip
def test_the_steps_lead_from_the_measured_rate_to_the_slowest_stage_alone(
    tmp_path: Path, settings: dict[str, Any], end: str, largest: str
) -> None:
    diagnosis, steps = steps_of(tmp_path / "run", **settings)
    capacities = diagnosis.capacities
    assert capacities.targets_alone is not None
    assert capacities.drafters_alone is not None
    first, *losses, alone, limit = steps
    assert first.reaches == diagnosis.throughput.tokens_per_s
    assert alone.name == end
    assert alone.reaches == pytest.approx(min(capacities.targets_alone, capacities.drafters_alone))
    reached = first.reaches
    for loss in losses:
        assert loss.gained is not None
        assert loss.reaches == pytest.approx(reached + loss.gained)
        reached = loss.reaches
    assert reached == pytest.approx(alone.reaches, rel=0.01)
    assert max(losses, key=lambda loss: loss.gained or 0.0).name == largest
    assert limit.reaches is None
    assert limit.reason == "logical devices have no ceilings"


def test_names_of_steps_are_unique_where_queues_are_several(tmp_path: Path) -> None:
    _, steps = steps_of(tmp_path / "run", targets=2, drafters=2, backward_s=1.5)
    names = [step.name for step in steps]
    assert len(names) == len(set(names))


def test_too_few_windows_leave_the_rate_unknown_with_its_reason(tmp_path: Path) -> None:
    _, steps = steps_of(tmp_path / "run", windows=4)
    assert steps[0].reaches is None
    assert "windows" in steps[0].rate
    assert all(step.gained is None for step in steps)


ceilings = DeviceCeilings(
    model="NVIDIA X1", uuid=None, matmul_tflops=100.0, memory_gb_per_s=1000.0, down_gb_per_s=None,
    up_gb_per_s=None, peer_gb_per_s=40.0, source="measured 2026-01-01",
)  # fmt: skip
marks = (
    StageMark(stage="target", gpus=2, per_token=13.2e9, tflops=930.0, working_share=0.588, whole_share=0.41),
    StageMark(stage="drafter", gpus=1, per_token=9e8, tflops=None, working_share=None, whole_share=None),
)


def test_from_the_stages_own_speed_the_steps_go_on_to_the_ceilings(tmp_path: Path) -> None:
    limit = Limit(as_split=9000.0, tokens_per_s=12000.0, split="colocated-3", gpus=3, ceilings=ceilings)
    _, steps = steps_of(tmp_path / "run", limit, targets=2)
    alone, kernels, split, last = steps[-4:]
    assert alone.name == "targets alone"
    assert alone.reaches is not None
    assert (kernels.name, kernels.reaches) == ("kernels below the ceilings", 9000.0)
    assert kernels.gained == pytest.approx(9000.0 - alone.reaches)
    assert split.name.replace("\u00a0", " ") == "split colocated-3, the best of 3 GPUs"
    assert split.gained == pytest.approx(3000.0)
    assert (last.name, last.reaches, last.gained) == ("limit of the devices", 12000.0, None)


def test_without_a_better_split_there_is_no_step_for_it(tmp_path: Path) -> None:
    _, steps = steps_of(tmp_path / "run", Limit(as_split=9000.0, tokens_per_s=9000.0), targets=2)
    assert [step.name for step in steps[-2:]] == ["kernels below the ceilings", "limit of the devices"]


def test_the_limit_is_explained_with_its_sources() -> None:
    limit = Limit(as_split=1.0, tokens_per_s=1.0, ceilings=ceilings, notes=("copies are taken as free",))
    said = explain_limit(limit).replace("\u00a0", " ")
    assert "NVIDIA X1 (measured 2026-01-01)" in said
    assert "100 TFLOP/s in bfloat16 products, 1,000 GB/s of memory, 40.0 GB/s to another GPU, and" in said
    assert said.endswith("Copies are taken as free.")
    assert explain_limit(unknown) == ""


def test_marks_are_said_for_people() -> None:
    target, drafter = mark_rows(Limit(marks=marks, reason="the tokens of a window are unknown"))
    words = [
        w.replace("\u00a0", " ") for w in (target.stage, target.per_token, target.tflops, target.working)
    ]
    assert words == ["targets (2 GPUs)", "13.2 GFLOP", "930 TFLOP/s", "59 %"]
    assert (drafter.tflops, drafter.working) == ("n/a", "n/a")
