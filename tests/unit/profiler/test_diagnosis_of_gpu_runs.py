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


def test_retries_of_the_allocator_that_cost_nothing_are_seen_and_rejected() -> None:
    """67 of them; the run was 2 % slower than those without."""
    found = examine(data / "pieces").diagnosis
    assert found.primary is not None
    assert found.primary.cause == "target-bound-healthy"
    (pieces,) = [one for one in found.findings if one.cause == "allocator-fragmentation"]
    assert pieces.verdict == "rejected"
    assert pieces.measured_cost_share == pytest.approx(0.01, abs=0.015)
    assert [one.value for one in pieces.evidence if one.name == "retries of the allocator"] == [67.0]


@pytest.mark.parametrize(("name", "retries"), [("pieces_8", 435.0), ("pieces_24", 1310.0)])
def test_retries_of_the_allocator_that_cost_are_named_with_what_they_cost(name: str, retries: float) -> None:
    found = examine(data / name).diagnosis
    assert [one.cause for one in found.findings if one.supported] == ["allocator-fragmentation"]
    assert found.primary is not None
    paces = json.loads((data / "measured.json").read_text(encoding="utf-8"))[name]
    lost = 1.0 - paces["the base again"] / paces["without blocks"]
    assert found.primary.measured_cost_share == pytest.approx(lost, abs=0.04)
    assert found.primary.predicted_gain == pytest.approx(lost / (1.0 - lost), rel=0.25)
    (count,) = [one.value for one in found.primary.evidence if one.name == "retries of the allocator"]
    assert count == pytest.approx(retries, abs=5.0)


def test_copies_through_host_memory_without_measured_links_are_named_with_their_gain() -> None:
    found = examine(data / "host_alone").diagnosis
    assert found.primary is not None
    assert found.primary.cause == "h2d-on-drafter-critical-path"  # the target's copy holds it up besides
    paces = json.loads((data / "measured.json").read_text(encoding="utf-8"))["host_alone"]
    lost = 1.0 - paces["the base again"] / paces["transport=peer"]
    assert found.primary.measured_cost_share == pytest.approx(lost, abs=0.05)
    assert found.primary.predicted_gain == pytest.approx(lost / (1.0 - lost), rel=0.2)
