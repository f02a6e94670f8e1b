"""Diagnoses of recorded runs of one H200 that all roles share."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from profiler.examination import examine

data = Path(__file__).parents[2] / "data" / "runs" / "h200_one_gpu"


@pytest.mark.parametrize("name", ["large", "small_windows", "lockstep"])
def test_roles_that_keep_one_gpu_busy_together_are_healthy(name: str) -> None:
    """One waits for the other in its queue or for its turn, but the GPU never does: nothing to move."""
    found = examine(data / name).diagnosis
    assert found.primary is not None
    assert found.primary.cause == "target-bound-healthy"
    assert "share their devices" in found.headline
    assert found.primary.remedy is not None
    assert found.primary.remedy.knobs == {}


def test_turns_on_a_gpu_are_told_as_turns() -> None:
    why = examine(data / "lockstep").diagnosis.why
    assert why.startswith("The target works 52 % of the time, and in the rest the same device works for the")


def test_a_copy_on_the_targets_path_is_named_with_the_gain_that_was_measured() -> None:
    found = examine(data / "host").diagnosis
    assert found.primary is not None
    assert found.primary.cause == "sync-d2h-on-critical-path"
    measured = json.loads((data / "measured.json").read_text(encoding="utf-8"))["large"]
    gain = measured["the base again"] / measured["transport=host"] - 1.0
    assert found.primary.predicted_gain == pytest.approx(gain, rel=0.15)
    # Those of drafters, too; and what either holds up on the GPU that they share.
    assert found.primary.measured_cost_share == pytest.approx(1.0 - 1.0 / (1.0 + gain), abs=0.1)
    assert "the drafter stands still 34 % of the time while the target copies" in found.why
