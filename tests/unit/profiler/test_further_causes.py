"""Waits, locks, packing, kernels and uneven links: each named by its own tell-tale, and not without it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from profiler.diagnosis import diagnose
from profiler.finding import Diagnosis, Finding
from profiler.run import Run
from profiler.timeline import Timeline
from tests.run_builder import RunBuilder

Parts = list[tuple[str, float]]
tokens = 20_000  # a batch, which is no small one


def looped(
    path: Path,
    target: Parts,
    drafter: Parts,
    *,
    batches: int = 60,
    emulated: bool = False,
    copies: tuple[float, float] | None = None,
    tuned_s: float = 0.0,
    **manifest: Any,
) -> Path:
    """Two targets and a drafter that do the same for every batch; who has time left waits for the others.

    `copies`: seconds of a target's copy of 1 GB to host memory, for each target.
    """
    builder = RunBuilder(path, emulated=emulated)
    extra = copies or (0.0, 0.0)
    period = max(sum(s for _, s in target) + max(extra), 2 * sum(s for _, s in drafter))
    for batch in range(batches):
        start = batch * period
        for index in (0, 1):
            parts = [*target, *([("copy", extra[index])] if copies else [])]
            _lay(builder, "target", index, parts, start, start + period, ("put", "q_hs"))
        for half in (0, 1):
            begin = start + half * period / 2
            _lay(builder, "drafter", 0, drafter, begin, begin + period / 2, ("get", "q_hs"))
        builder.gauge("trainer", 0, "autotune_s", start + period, tuned_s * (batch + 1))
        builder.window(batch, start + period, 2 * tokens)
    return builder.finish(**manifest)


def _lay(
    builder: RunBuilder, stage: str, index: int, parts: Parts, begin: float, end: float, wait: tuple[str, str]
) -> None:
    for name, seconds in parts:
        if seconds == 0:
            continue
        facts: dict[str, Any] = {"tokens": tokens} if name in ("forward", "backward") else {}
        if name == "copy":
            facts = {"src": f"cuda:{index}", "dst": "cpu", "path": "pinned", "bytes": 10**9}
        builder.span(stage, index, name, begin, begin + seconds, **facts)
        begin += seconds
    if end - begin > 1e-9:
        builder.span(stage, index, wait[0], begin, end, channel=wait[1])


def diagnosed(path: Path) -> Diagnosis:
    return diagnose(Timeline.of(Run.open(path)))


def named(diagnosis: Diagnosis) -> list[str]:
    return [finding.cause for finding in diagnosis.findings if finding.supported]


def finding_of(diagnosis: Diagnosis, cause: str) -> Finding:
    return next(finding for finding in diagnosis.findings if finding.cause == cause)


quick: Parts = [("backward", 0.1)]


def test_packing_between_forwards_is_named_with_its_cost(tmp_path: Path) -> None:
    diagnosis = diagnosed(looped(tmp_path / "r", [("forward", 0.8), ("gather", 0.2)], quick))
    assert named(diagnosis) == ["python-packing-loop"]
    assert finding_of(diagnosis, "python-packing-loop").measured_cost_share == pytest.approx(0.2, abs=0.01)


def test_a_little_packing_is_rejected_by_its_cost(tmp_path: Path) -> None:
    diagnosis = diagnosed(looped(tmp_path / "r", [("forward", 0.97), ("gather", 0.03)], quick))
    assert named(diagnosis) == ["target-bound-healthy"]
    assert "3" in finding_of(diagnosis, "python-packing-loop").summary


def test_waits_for_the_own_device_are_the_drafters_cost_and_not_its_slowness(tmp_path: Path) -> None:
    drafter: Parts = [("backward", 0.3), ("gpu_wait", 0.7)]
    path = looped(tmp_path / "r", [("forward", 1.0)], drafter, emulated=True)
    diagnosis = diagnosed(path)
    assert named(diagnosis) == ["per-step-scalar-sync"]
    assert finding_of(diagnosis, "drafter-too-slow").verdict == "rejected"
    assert finding_of(diagnosis, "per-step-scalar-sync").measured_cost_share == pytest.approx(0.5, abs=0.02)


def test_a_wait_for_a_device_at_work_is_no_sickness_of_its_own(tmp_path: Path) -> None:
    """Where only the host's clock tells, a thread that waits for its busy GPU just computes."""
    builder_path = looped(
        tmp_path / "r",
        [("forward", 1.0)],
        [("backward", 0.3), ("gpu_wait", 0.7)],
        devices=[{"name": "logical:drafter0", "role": "drafter", "index": 0, "uuid": "GPU-d"}],
    )
    _add_gpu(builder_path, "GPU-d", util=99.0, power=580.0, until_s=120)
    diagnosis = diagnosed(builder_path)
    assert named(diagnosis) == ["drafter-too-slow"]
    assert "at work all the time" in finding_of(diagnosis, "per-step-scalar-sync").summary


def _add_gpu(path: Path, uuid: str, *, util: float, power: float, until_s: int) -> None:
    from dflash.contract.arrowlog import ArrowLog
    from dflash.contract.events import sample_schema
    from tests.run_builder import nanoseconds

    log = ArrowLog(path / "samples" / "gpu.arrow", sample_schema)
    for second in range(until_s):
        for metric, value in (("util_pct", util), ("power_w", power), ("power_limit_w", 600.0)):
            log.append((nanoseconds(second), "gpu", uuid, metric, value, None))
    log.close()


def test_waits_for_the_tuners_lock_are_named(tmp_path: Path) -> None:
    parts: Parts = [("forward", 0.7), ("lock_wait", 0.3)]
    diagnosis = diagnosed(looped(tmp_path / "r", parts, quick, tuned_s=0.05))
    assert named(diagnosis) == ["kernel-autotune-lock"]
    cost = finding_of(diagnosis, "kernel-autotune-lock").measured_cost_share
    assert cost == pytest.approx(0.3 + 0.05 / 2, abs=0.01)


def test_tuning_without_told_waits_holds_the_whole_stage(tmp_path: Path) -> None:
    diagnosis = diagnosed(looped(tmp_path / "r", [("forward", 1.0)], quick, tuned_s=0.4))
    assert named(diagnosis)[:1] == ["kernel-autotune-lock"]
    assert finding_of(diagnosis, "kernel-autotune-lock").measured_cost_share == pytest.approx(0.4, abs=0.02)


def test_no_tuning_after_warm_up_is_rejected(tmp_path: Path) -> None:
    diagnosis = diagnosed(looped(tmp_path / "r", [("forward", 1.0)], quick))
    assert finding_of(diagnosis, "kernel-autotune-lock").verdict == "rejected"


slow = {"gated_deltanet": "reference PyTorch (slow): install flash-linear-attention"}


def test_a_fallback_of_the_limiting_stage_is_named(tmp_path: Path) -> None:
    diagnosis = diagnosed(looped(tmp_path / "r", [("forward", 1.0)], quick, kernels=slow))
    assert named(diagnosis) == ["slow-kernel-fallback"]
    assert "flash-linear-attention" in diagnosis.next_step


def test_a_fallback_of_a_stage_that_waits_is_not_named(tmp_path: Path) -> None:
    drafter: Parts = [("backward", 1.0)]
    diagnosis = diagnosed(looped(tmp_path / "r", [("forward", 1.0)], drafter, kernels=slow))
    assert "slow-kernel-fallback" not in named(diagnosis)


def test_fast_kernels_are_rejected_and_untold_ones_not_judged(tmp_path: Path) -> None:
    fast = diagnosed(looped(tmp_path / "a", [("forward", 1.0)], quick, kernels={"attention": "flash"}))
    assert finding_of(fast, "slow-kernel-fallback").verdict == "rejected"
    untold = diagnosed(looped(tmp_path / "b", [("forward", 1.0)], quick))
    assert finding_of(untold, "slow-kernel-fallback").verdict == "not_enough_evidence"


def test_a_reference_kernel_on_logical_devices_is_no_fault(tmp_path: Path) -> None:
    path = looped(tmp_path / "r", [("forward", 1.0)], quick, kernels=slow, emulated=True)
    assert named(diagnosed(path)) == ["target-bound-healthy"]


def test_copies_of_one_gpu_that_are_slow_are_named_before_the_copies_themselves(tmp_path: Path) -> None:
    path = looped(tmp_path / "r", [("forward", 0.7)], quick, copies=(0.05, 0.3))
    diagnosis = diagnosed(path)
    assert named(diagnosis)[:1] == ["numa-remote-host-buffers"], diagnosis.headline
    finding = finding_of(diagnosis, "numa-remote-host-buffers")
    assert "cuda:1" in finding.summary
    rates = {item.name: item.value for item in finding.evidence}
    assert rates["copies of cuda:0"] == pytest.approx(20.0)
    assert rates["copies of cuda:1"] == pytest.approx(1 / 0.3)


def test_equal_copies_are_the_copies_fault(tmp_path: Path) -> None:
    diagnosis = diagnosed(looped(tmp_path / "r", [("forward", 0.7)], quick, copies=(0.3, 0.3)))
    assert named(diagnosis) == ["sync-d2h-on-critical-path"]
    assert finding_of(diagnosis, "numa-remote-host-buffers").verdict == "rejected"


def test_a_host_with_one_memory_node_has_no_far_one(tmp_path: Path) -> None:
    hardware = {"numa_nodes": {"0": "0-31"}}
    path = looped(tmp_path / "r", [("forward", 0.7)], quick, copies=(0.05, 0.3), hardware=hardware)
    finding = finding_of(diagnosed(path), "numa-remote-host-buffers")
    assert finding.verdict == "rejected"
    assert "one memory node" in finding.summary


def test_evaluations_that_drafters_have_time_for_are_no_fault(tmp_path: Path) -> None:
    aside = [("backward", 0.1), ("evaluate", 0.05)]
    assert "drafter-too-slow" not in named(diagnosed(looped(tmp_path / "r", [("forward", 0.7)], aside)))


@pytest.mark.parametrize(
    ("name", "knob"), [("evaluate", "run.evaluate_every"), ("checkpoint", "run.checkpoint_every")]
)
def test_drafters_held_up_by_work_beside_their_step_are_told_its_knob(
    tmp_path: Path, name: str, knob: str
) -> None:
    path = looped(tmp_path / "r", [("forward", 0.3)], [("backward", 0.1), (name, 0.2)])
    diagnosis = diagnosed(path)
    assert named(diagnosis)[:1] == ["drafter-too-slow"], diagnosis.headline
    remedy = finding_of(diagnosis, "drafter-too-slow").remedy
    assert remedy is not None
    assert remedy.text.startswith(
        f"Take {name} off the drafters' thread, or do it less often (raise {knob}). "
    )
