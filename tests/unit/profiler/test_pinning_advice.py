"""C047: pinned buffers are advised only where there is work to copy beside, and with the condition."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from profiler.diagnosis import diagnose
from profiler.finding import Finding
from profiler.run import Run
from profiler.timeline import Timeline
from tests.played_pipeline import play


def advice(path: Path, **settings: Any) -> list[Finding]:
    """The supported findings of a played run whose remedy is pinned buffers."""
    run = play(path / "run", preset="host", depth=2, **settings)
    findings = diagnose(Timeline.of(Run.open(run))).findings
    return [f for f in findings if f.supported and f.remedy is not None and "pinned" in f.remedy.text]


@pytest.mark.parametrize(
    "settings",
    [{"target_copy_s": 0.3}, {"target_copy_s": 1.0}, {"backward_s": 0.3, "drafter_copy_s": 0.3}],
)
def test_where_copies_hold_work_up_pinning_is_advised_with_its_condition(
    tmp_path: Path, settings: dict[str, float]
) -> None:
    [finding] = advice(tmp_path, **settings)
    assert finding.condition
    assert (finding.measured_cost_share or 0.0) > 0.05


@pytest.mark.parametrize(
    "settings",
    [
        {"target_copy_s": 0.3, "backward_s": 2.0},  # the drafters hold everything up, whatever targets copy
        {"drafter_copy_s": 0.05, "backward_s": 0.05},  # the targets do
        {"target_copy_s": 0.0},  # nothing is copied on a stage's thread
    ],
)
def test_with_nothing_to_overlap_it_is_not_advised(tmp_path: Path, settings: dict[str, float]) -> None:
    assert advice(tmp_path, **settings) == []
