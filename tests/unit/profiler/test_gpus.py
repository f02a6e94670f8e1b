"""What is said of the GPUs of a run: busy is paired with power, and unknown stays unknown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dflash.contract.rundir import RunDir
from profiler.diagnosis import diagnose
from profiler.gpus import full_work, little_work
from profiler.run import Run
from profiler.timeline import Timeline
from tests.gpu_readings import cases, listed, watch
from tests.played_pipeline import play
from tests.run_builder import RunBuilder

c057, c070 = cases / "c057_util100_low_power.json", cases / "c070_throttled_straggler.json"


def timeline_of(path: Path) -> Timeline:
    return Timeline.of(Run.open(path))


def played(tmp_path: Path, file: Path, *, devices: Any = None, **settings: Any) -> Timeline:
    path = play(
        tmp_path / "run",
        emulated=False,
        **{"targets": 1, "forward_s": 0.2, "backward_s": 0.04, "windows": 16, **settings},
    )
    watch(path, file, devices=devices)
    return timeline_of(path)


def changed(tmp_path: Path, file: Path, *gpus: dict[str, Any], **top: Any) -> Path:
    """The case with fields of its GPUs changed."""
    data = json.loads(file.read_text())
    for entry, changes in zip(data["gpus"], gpus, strict=False):
        entry.update(changes)
    path = tmp_path / "case.json"
    path.write_text(json.dumps(data | top))
    return path


def by_label(timeline: Timeline) -> dict[str, dict[Any, Any]]:
    return {gpu["label"]: gpu for gpu in timeline.gpus.to_dict("records")}


def test_busy_with_little_power_is_small_work_and_busy_near_the_limit_is_not(tmp_path: Path) -> None:
    timeline = played(tmp_path, c057, devices=listed(c057))
    gpus = by_label(timeline)
    drafter, target = gpus["cuda:0 drafter 0"], gpus["cuda:1 target 0"]
    assert (drafter["util_pct"], target["util_pct"]) == (100, 100)
    assert drafter["busy_power_share"] == pytest.approx(118 / 600)
    assert (drafter["work"], target["work"]) == (little_work, full_work)
    told = [w for w in timeline.warnings if little_work in w]
    assert len(told) == 1
    assert told[0].startswith("cuda:0 drafter 0: 100 % utilised at 20 % of its power limit")


@pytest.mark.parametrize(("order", "healthy"), [([0, 1], True), ([1, 0], False)])
def test_small_work_of_the_limiting_stage_is_never_healthy(
    tmp_path: Path, order: list[int], healthy: bool
) -> None:
    timeline = played(tmp_path, c057, devices=listed(c057, order))
    (finding,) = [f for f in diagnose(timeline).findings if f.cause == "target-bound-healthy"]
    assert finding.supported is healthy
    if not healthy:
        assert little_work in finding.summary


@pytest.mark.parametrize(
    ("changes", "work"),
    [
        ({"sm_active_pct": 80}, None),  # the SMs are at work: little power has another reason
        ({"sm_active_pct": 10}, little_work),
        ({"throttle_reasons": 64}, None),
        ({"util_gpu": 40}, None),  # it does not look busy
        ({"power_mw": {"error": "NVML_ERROR_NOT_SUPPORTED"}}, None),
        ({"power_limit_mw": 0}, None),
        ({"power_mw": 250_000}, full_work),
    ],
)
def test_work_is_judged_only_where_it_can_be(
    tmp_path: Path, changes: dict[str, Any], work: str | None
) -> None:
    path = changed(tmp_path, c057, changes)
    timeline = played(tmp_path, path, devices=listed(path))
    assert by_label(timeline)["cuda:0 drafter 0"]["work"] == work


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]])
def test_permuted_devices_are_not_mixed_up(tmp_path: Path, order: list[int]) -> None:
    timeline = played(tmp_path, c070, devices=listed(c070, order))
    clocks = timeline.gpus.set_index("device")["sm_clock_mhz"]
    assert clocks[f"cuda:{order.index(1)}"] == 780
    assert (clocks.drop(f"cuda:{order.index(1)}") == 1700).all()


def test_without_known_devices_the_visible_ones_are_named_by_number(tmp_path: Path) -> None:
    path = RunBuilder(tmp_path / "run").finish()
    watch(path, c070, environ={"CUDA_VISIBLE_DEVICES": "1,0"}, seconds=5)
    gpus = timeline_of(path).gpus
    assert list(gpus["device"]) == ["cuda:0", "cuda:1"]
    assert list(gpus["sm_clock_mhz"]) == [780, 1700]
    assert set(gpus["role"]) == {"n/a"}


def test_gpus_of_the_machine_are_not_those_of_a_run_on_logical_devices(tmp_path: Path) -> None:
    devices = [{"name": "logical:0", "role": "target", "index": 0, "uuid": None, "pci": None}]
    assert not len(played(tmp_path, c070, devices=devices).gpus)


def test_throttle_reasons_are_named(tmp_path: Path) -> None:
    gpus = by_label(played(tmp_path, changed(tmp_path, c070, {"throttle_reasons": 1}), devices=listed(c070)))
    assert gpus["cuda:1 target 1"]["throttled"] == "thermal (hardware)"
    assert gpus["cuda:0 target 0"]["throttled"] == ""  # idle is no slowdown
    path = changed(tmp_path, c070, {"throttle_reasons": {"error": "NVML_ERROR_NOT_SUPPORTED"}})
    play(tmp_path / "other", windows=1)
    watch(tmp_path / "other", path, devices=listed(c070), seconds=5)
    assert by_label(timeline_of(tmp_path / "other"))["cuda:0 target 0"]["throttled"] is None


def test_slice_has_its_memory_and_its_lacks_are_told_with_lower_confidence(tmp_path: Path) -> None:
    uuid = "GPU-aaaa0000-0000-0000-0000-000000000001"  # as CUDA spells the slice's
    devices = [{"name": "cuda:0", "role": "target", "index": 0, "uuid": uuid, "pci": "00000000:01:00.0"}]
    timeline = played(tmp_path, cases / "c060_mig.json", devices=devices)
    (gpu,) = timeline.gpus.to_dict("records")
    assert gpu["key"].startswith("MIG-")
    assert gpu["mem_used_bytes"] == 9e9
    assert np.isnan(gpu["util_pct"])
    assert gpu["work"] is None
    (warning,) = timeline.warnings
    assert "utilisation, power n/a (not supported on MIG" in warning
    assert "lower confidence" in warning


@pytest.mark.parametrize("driver", ["not_supported", "success_zero"])
def test_unified_memory_is_not_shown_as_zero_or_added(tmp_path: Path, driver: str) -> None:
    file = cases / f"c061_gb10_{driver}.json"
    uuid = json.loads(file.read_text())["gpus"][0]["uuid"]
    devices = [{"name": "cuda:0", "role": "target", "index": 0, "uuid": uuid, "pci": None}]
    timeline = played(tmp_path, file, devices=devices)
    (gpu,) = timeline.gpus.to_dict("records")
    assert gpu["unified_memory"] is True
    assert np.isnan(gpu["mem_used_bytes"])
    assert np.isnan(gpu["foreign_bytes"])
    assert timeline.warnings == ()
    unified = timeline.series("unified_mem_used_bytes")
    assert unified["value"].iloc[0] == (127_600_748 - 118_566_368) * 1024


def test_foreign_load_is_noticed_also_where_pids_tell_nothing(tmp_path: Path) -> None:
    file = cases / "c066_pid_host_namespace.json"
    uuid = json.loads(file.read_text())["gpus"][0]["uuid"]
    builder = RunBuilder(tmp_path / "run", emulated=False)
    for at_s in range(10):
        builder.gauge("target", 0, "reserved_bytes", at_s, 30e9, device="cuda:0")
        builder.span("target", 0, "forward", at_s, at_s + 0.9, device="cuda:0", tokens=1)
    path = builder.finish()
    devices = [{"name": "cuda:0", "role": "target", "index": 0, "uuid": uuid, "pci": None}]
    watch(path, file, devices=devices, seconds=10)
    timeline = timeline_of(path)
    (gpu,) = timeline.gpus.to_dict("records")
    assert (gpu["own_bytes"], gpu["foreign_bytes"], gpu["own_source"]) == (30e9, 10e9, "allocator")
    assert gpu["missing"]["own_mem_bytes"].startswith("pid namespace")
    assert any("about 10 GB of its memory are not this run's" in w for w in timeline.warnings)


def test_without_any_figure_of_our_own_foreign_load_is_unknown(tmp_path: Path) -> None:
    path = RunBuilder(tmp_path / "run").finish()
    watch(path, cases / "c066_pid_host_namespace.json", seconds=5)
    (gpu,) = timeline_of(path).gpus.to_dict("records")
    assert gpu["mem_used_bytes"] == 40e9
    assert np.isnan(gpu["own_bytes"])
    assert np.isnan(gpu["foreign_bytes"])
    assert gpu["own_source"] is None


@pytest.mark.parametrize("case", ["c063_lib_missing", "c068_driver_mismatch"])
def test_machine_without_a_driver_has_no_gpus_and_says_why(tmp_path: Path, case: str) -> None:
    path = play(tmp_path / "run", windows=1)
    watch(path, cases / f"{case}.json")
    assert not len(timeline_of(path).gpus)
    assert "NVML_ERROR" in RunDir(path).manifest()["hardware"]["no_gpus"]


def test_idle_gaps_come_from_power_samples_and_are_common_to_all_targets(tmp_path: Path) -> None:
    # Two targets idle together for 0.3 s of every 1.5 s; one of them idles again by itself.
    together = [600_000] * 60 + [120_000] * 15
    alone = [600_000] * 20 + [120_000] * 15 + [600_000] * 25 + [120_000] * 15
    file = changed(
        tmp_path,
        c070,
        {"power_samples": {"interval_ms": 20, "mw": together}},
        {"power_samples": {"interval_ms": 20, "mw": alone}},
    )
    devices = listed(c070)[:2]
    path = RunBuilder(tmp_path / "run", emulated=False).finish()
    watch(path, file, devices=devices, seconds=31, every_s=0.5)
    timeline = timeline_of(path)
    counts = timeline.idle_gaps.groupby(["index", "common"]).size().to_dict()
    assert counts == {(0, True): 20, (1, True): 20, (1, False): 20} or sum(counts.values()) in (59, 60)
    assert timeline.idle_gaps["seconds"].between(0.25, 0.35).all()
    assert set(timeline.idle_gaps["evidence"]) == {"power"}
    assert timeline.idle_unknown == {}


def test_gpu_without_power_samples_or_events_says_why_gaps_are_unknown(tmp_path: Path) -> None:
    timeline = played(tmp_path, c070, devices=listed(c070))
    assert not len(timeline.idle_gaps)
    assert len(timeline.idle_unknown) == 4
    assert all("not supported" in reason for reason in timeline.idle_unknown.values())


@pytest.mark.parametrize("unified", [True, False])
def test_advice_on_staging_in_host_memory_is_for_gpus_with_memory_of_their_own(
    tmp_path: Path, unified: bool
) -> None:
    file = cases / "c061_gb10_success_zero.json" if unified else c057
    devices = [
        {"name": "cuda:0", "role": role, "index": 0, "uuid": json.loads(file.read_text())["gpus"][0]["uuid"]}
        for role in ("target", "drafter")
    ]
    staged = {"preset": "host", "depth": 40, "drafter_copy_s": 0.4, "targets": 3, "windows": 40}
    timeline = played(tmp_path, file, devices=devices, **staged)
    host_causes = {"host-staging-queue-too-deep", "h2d-on-drafter-critical-path", "sync-d2h-on-critical-path"}
    findings = [f for f in diagnose(timeline).findings if f.cause in host_causes]
    assert any(f.supported for f in findings) is not unified
    if unified:
        assert any("use the host's memory" in f.summary for f in findings)
