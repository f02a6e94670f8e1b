"""Time in which a stage's threads had no CPU is told apart from their work."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from profiler.capacity import measure_loads
from profiler.cpu_waits import cpu_wait
from profiler.diagnosis import diagnose
from profiler.run import Run
from profiler.timeline import Timeline
from tests.gil_samples import add_gil, stages
from tests.played_pipeline import play


def crowded(path: Path, ready: float, **settings: object) -> Timeline:
    """A played run whose drafter stands ready without a CPU for that share of its time."""
    play(path, **settings)  # type: ignore[arg-type]
    return Timeline.of(Run.open(add_gil(path, {stages["drafter"]: 0.0}, ready=ready, holder=None)))


def test_waits_of_a_stage_are_those_of_its_threads(tmp_path: Path) -> None:
    timeline = crowded(tmp_path / "run", 0.4, backward_s=0.38)
    loads = measure_loads(timeline)
    assert loads is not None
    assert cpu_wait(timeline, loads.drafter) == pytest.approx(0.4, abs=0.02)
    assert cpu_wait(timeline, loads.target) is None  # not sampled
    on_gpus = replace(timeline, service=timeline.service.assign(clock="gpu"))
    assert cpu_wait(on_gpus, loads.drafter) == 0.0


@pytest.mark.parametrize(("ready", "named"), [(0.0, True), (0.6, False)])
def test_drafters_without_a_cpu_are_not_called_slow(tmp_path: Path, ready: float, named: bool) -> None:
    diagnosis = diagnose(crowded(tmp_path / "run", ready, backward_s=0.5))
    finding = next(f for f in diagnosis.findings if f.cause == "drafter-too-slow")
    assert finding.supported == named
    told = {item.name: item.value for item in finding.evidence}
    assert told["drafters ready to run, without a CPU"] == pytest.approx(ready, abs=0.02)
