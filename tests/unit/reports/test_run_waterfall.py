from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from profiler.capacity import measure_loads
from profiler.diagnosis import diagnose
from profiler.finding import Diagnosis
from profiler.run import Run
from profiler.timeline import Timeline
from reports.run_waterfall import step_to_limit
from reports.waterfall import Step
from tests.played_pipeline import play


def steps_of(path: Path, **settings: Any) -> tuple[Diagnosis, tuple[Step, ...]]:
    timeline = Timeline.of(Run.open(play(path, **settings)))
    diagnosis = diagnose(timeline)
    loads = measure_loads(timeline)
    return diagnosis, step_to_limit(diagnosis.throughput, diagnosis.capacities, loads, timeline.emulated)


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
