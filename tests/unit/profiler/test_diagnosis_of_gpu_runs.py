"""Diagnoses of recorded runs of one H200 that all roles share."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from dflash.contract.arrowlog import read_log
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


def stretch_retries(run_path: Path, to: Path, each_s: float) -> None:
    """The run as if the first forward with retries and every one after it had taken that much longer."""
    (to / "events").mkdir(parents=True)
    shutil.copy(run_path / "run.json", to)
    table = read_log(run_path / "events/trainer.arrow")[0]
    frame = table.to_pandas()
    begin = frame["t_ns"].to_numpy(dtype=float)
    end = begin + frame["dur_ns"].fillna(0).to_numpy(dtype=float)
    retries = (frame["name"] == "alloc_retries") & (frame["value"] > 0)
    forwards = (frame["name"] == "forward") & (frame["clock"] == "host")
    since = begin[retries].min() - 0.5e9  # the gauge is read once in so many seconds
    before_ends = np.sort(end[forwards & (end > since)]) - 1e5

    def later(t_ns: NDArray[np.float64]) -> NDArray[np.float64]:
        shifted: NDArray[np.float64] = t_ns + np.searchsorted(before_ends, t_ns) * each_s * 1e9
        return shifted

    known = frame["dur_ns"].notna()
    frame["t_ns"] = later(begin).astype("int64")
    frame["dur_ns"] = pd.array((later(end) - later(begin)).astype("int64"), dtype="Int64")
    frame.loc[~known, "dur_ns"] = pd.NA
    longer = pa.Table.from_pandas(frame, schema=table.schema, preserve_index=False)
    with pa.ipc.new_stream(to / "events/trainer.arrow", table.schema) as stream:
        stream.write_table(longer)


@pytest.mark.parametrize("each_s", [0.02, 0.05, 0.1])
def test_the_same_retries_are_named_when_they_cost(each_s: float, tmp_path: Path) -> None:
    """The cost comes out a little low: what was trained since the reading before counts as with retries."""
    lost = each_s / (each_s + 0.126)  # 6,227 tokens, which a batch has, at 49.4 Ktok/s
    stretch_retries(data / "pieces", tmp_path / "run", each_s)
    found = examine(tmp_path / "run").diagnosis
    assert [one.cause for one in found.findings if one.supported] == ["allocator-fragmentation"]
    assert found.primary is not None
    assert found.primary.measured_cost_share == pytest.approx(lost, rel=0.15)
    assert found.primary.predicted_gain == pytest.approx(lost / (1.0 - lost), rel=0.15)


def test_copies_through_host_memory_without_measured_links_are_named_with_their_gain() -> None:
    found = examine(data / "host_alone").diagnosis
    assert found.primary is not None
    assert found.primary.cause == "h2d-on-drafter-critical-path"  # the target's copy holds it up besides
    paces = json.loads((data / "measured.json").read_text(encoding="utf-8"))["host_alone"]
    lost = 1.0 - paces["the base again"] / paces["transport=peer"]
    assert found.primary.measured_cost_share == pytest.approx(lost, abs=0.05)
    assert found.primary.predicted_gain == pytest.approx(lost / (1.0 - lost), rel=0.2)
