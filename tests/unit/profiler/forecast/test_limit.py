"""The limit of given hardware, against counts by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dflash.contract.ceilings import Ceilings, DeviceCeilings
from dflash.contract.operations import Operations, Part
from dflash.contract.rundir import RunDir, write_json
from profiler.capacity import measure_loads
from profiler.forecast.limit import measure_limit
from profiler.hardware_limit import Limit, StageTimes
from profiler.run import Run
from profiler.timeline import Timeline
from tests.played_pipeline import play

ceilings = DeviceCeilings(
    model="NVIDIA X1", uuid="GPU-0", matmul_tflops=100.0, memory_gb_per_s=1000.0, down_gb_per_s=20.0,
    up_gb_per_s=25.0, peer_gb_per_s=40.0, source="measured",
)  # fmt: skip
operations = Operations(
    parts=(
        Part(stage="target", name="matrix products", per_token=1e9, why="2 × weights"),
        Part(stage="drafter", name="blocks", per_token=0.6e9, why="6 × weights"),
        Part(stage="drafter", name="head", per_token=0.2e9, why="4 × weights"),
    ),
    dtype_bytes={"target": 2, "drafter": 2},
    weight_bytes={"target": 1_000_000, "drafter": 2_000_000},
    step_bytes=3_000_000_000,
    state_bytes=40_000,
)


def limit_of(
    path: Path,
    *,
    work: Operations | None = operations,
    each: DeviceCeilings = ceilings,
    visible: int = 0,
    manifest: dict[str, Any] | None = None,
    changes: dict[str, Any] | None = None,
    **settings: Any,
) -> Limit:
    """Of a played run: 6,000 tokens a window in batches of 1,000. `changes`: of its configuration."""
    settings = {"targets": 2, "drafters": 1, "windows": 24, **settings}
    play(path, emulated=False, jitter=0.0, **settings)
    roles = [("target", i) for i in range(settings["targets"])]
    roles += [("drafter", i) for i in range(settings["drafters"])]
    devices = [
        {"name": f"cuda:{n}", "role": role, "index": i, "model": "NVIDIA X1", "uuid": f"GPU-{n}"}
        for n, (role, i) in enumerate(roles)
    ]
    shown = [f"GPU-{n}" for n in range(visible)]
    gpus = [{"uuid": uuid, "name": "NVIDIA X1"} for uuid in shown]
    entries = {"operations": None if work is None else work.to_json(), **(manifest or {})}
    RunDir(path).update(devices=devices, hardware={"gpus": gpus, "visible_gpus": shown}, **entries)
    document = Ceilings(measured_utc="2026-01-01T00:00:00Z", torch="2.11", devices=(each,))
    write_json(RunDir(path).ceilings_path, document.to_json())
    run = Run.open(path)
    timeline = Timeline.of(run)
    config = None if run.config is None else run.config.replacing(changes or {})
    return measure_limit(run, timeline, measure_loads(timeline), config=config)


def test_a_split_at_the_ceilings_by_hand(tmp_path: Path) -> None:
    found = limit_of(tmp_path / "run")
    # A window: targets 6,000 × 10 µs ÷ 2 = 30 ms; the drafter 6,000 × 8 µs = 48 ms, and 3 ms of step.
    assert found.as_split == pytest.approx(6000 / 0.051)
    # Three GPUs with both roles: (6,000 × 18 µs + 3 ms) ÷ 3 = 37 ms.
    assert found.tokens_per_s == pytest.approx(6000 / 0.037)
    assert (found.split, found.gpus) == ("colocated-3", 3)
    assert found.reason is None


def test_another_split_can_be_asked_about(tmp_path: Path) -> None:
    found = limit_of(tmp_path / "run", changes={"pipeline.split": "1-2"})
    assert found.as_split == pytest.approx(6000 / 0.060)  # the one target, 6,000 × 10 µs
    assert found.tokens_per_s == pytest.approx(6000 / 0.037)


def test_roles_that_share_gpus_share_their_time(tmp_path: Path) -> None:
    found = limit_of(tmp_path / "run", changes={"devices.gpus": 2})
    assert found.as_split == pytest.approx(6000 / ((6000 * 18e-6 + 0.003) / 2))


def test_marks_are_shares_of_the_ceiling(tmp_path: Path) -> None:
    target, drafter = limit_of(tmp_path / "run", forward_s=1.0, backward_s=0.2).marks
    # Two targets at 1,000 tokens a second each, nearly all of the time.
    assert (target.gpus, target.per_token) == (2, 1e9)
    assert target.tflops == pytest.approx(2000 * 1e9 / 1e12, rel=0.02)
    assert target.working_share == pytest.approx(2000 * 1e9 / 200e12, rel=0.02)
    # A drafter that could do 5,000 and does 2,000.
    assert drafter.working_share == pytest.approx(5000 * 0.8e9 / 100e12, rel=0.1)
    assert drafter.whole_share == pytest.approx(2000 * 0.8e9 / 100e12, rel=0.1)
    assert drafter.working_share is not None
    assert drafter.whole_share is not None
    assert drafter.whole_share < drafter.working_share


def test_all_gpus_that_were_visible_count(tmp_path: Path) -> None:
    found = limit_of(tmp_path / "run", visible=5)
    assert (found.split, found.gpus) == ("colocated-5", 5)
    assert found.tokens_per_s == pytest.approx(6000 / ((6000 * 18e-6 + 0.003) / 5))


def test_a_slow_copy_is_a_ceiling_too(tmp_path: Path) -> None:
    slow = replace(ceilings, peer_gb_per_s=1.0, down_gb_per_s=2.0, up_gb_per_s=3.0)
    # The way through the host is the faster one, its slower end 2 GB/s: 20 µs a token for the one drafter.
    found = limit_of(tmp_path / "run", each=slow)
    assert found.as_split == pytest.approx(6000 / (6000 * 20e-6 + 0.003))
    seen = limit_of(tmp_path / "seen", each=slow, manifest={"transport_edges": [{"peer_gb_per_s": 40.0}]})
    assert seen.as_split == pytest.approx(6000 / 0.051)


def test_small_batches_cannot_be_faster_than_their_weights_are_read(tmp_path: Path) -> None:
    heavy = replace(operations, weight_bytes={"target": 20_000_000_000, "drafter": 0})
    # 20 ms of reading for each batch of 1,000: 20 µs a token.
    found = limit_of(tmp_path / "run", work=heavy)
    assert found.as_split == pytest.approx(6000 / (6000 * 20e-6 / 2))


def test_splits_that_cannot_be_are_not_taken() -> None:
    times = StageTimes(target_s=1.0, drafter_s=1.0, carry_s=0.0, step_s=0.0)
    assert times.apart(3, 1, 12.0) == pytest.approx(1.0)
    assert times.apart(2, 2, 12.0) == pytest.approx(2.0)
    assert times.together(4, 12.0) == pytest.approx(2.0)
    carrying = replace(times, carry_s=3.0)
    assert carrying.apart(1, 6, 12.0) == pytest.approx(1 / 3), "a target cannot send faster than its link"
    assert carrying.apart(6, 1, 12.0) == pytest.approx(1 / 3), "nor a drafter be sent to"
    stepping = replace(times, step_s=12.0)
    # All but the step is spread: a window trains for 3 and steps for 12, whatever else goes on.
    assert stepping.together(4, 12.0) == pytest.approx(12.0 / 15.0)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"work": None}, "does not say how many operations"),
        ({"work": replace(operations, parts=())}, "does not say how many operations"),
        ({"work": replace(operations, dtype_bytes={"target": 4, "drafter": 4})}, "bfloat16"),
        ({"manifest": {"operations": {"parts": "many"}}}, "does not say how many operations"),
        ({"manifest": {"emulated": True}}, "logical devices have no ceilings"),
    ],
)
def test_an_unknown_limit_has_its_reason(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    found = limit_of(tmp_path / "run", **changes)
    assert found.tokens_per_s is None
    assert reason in (found.reason or "")
