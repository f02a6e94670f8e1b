"""GPU sampling over recorded machines: what cannot be read is a reason, never a zero and never a crash."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dflash.contract.errors import UsageError
from profiler.samplers.base import Reading, retry_s
from profiler.samplers.gpu import GpuSampler, open_sensors
from profiler.samplers.metrics import gpu_metrics, metric_table, power_samples, process_metrics
from profiler.samplers.replay import ReplaySensors
from profiler.samplers.sensors import Answer, GpuDevice, GpuProcess, GpuSensors, PowerSample, Unreadable

gpu0, gpu1 = "GPU-00000000-1111-2222-3333-444444444440", "GPU-00000001-1111-2222-3333-444444444441"
mig_slice = "MIG-aaaa0000-0000-0000-0000-000000000001"


@pytest.fixture
def cases(data_dir: Path) -> Path:
    return data_dir / "cases" / "nvml"


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def first_readings(path: Path) -> dict[tuple[str, str], Reading]:
    sampler = GpuSampler(ReplaySensors(path))
    assert sampler.open() is None
    return {(r.key, r.metric): r for r in sampler.sample()}


def values(readings: dict[tuple[str, str], Reading], key: str) -> dict[str, float | None]:
    return {metric: reading.value for (k, metric), reading in readings.items() if k == key}


def known(readings: dict[tuple[str, str], Reading], key: str) -> dict[str, float | None]:
    return {metric: value for metric, value in values(readings, key).items() if value is not None}


def test_every_metric_of_a_whole_gpu_is_read_in_its_unit(cases: Path) -> None:
    readings = first_readings(cases / "c070_throttled_straggler.json")
    assert known(readings, gpu1) == {
        "util_pct": 100,
        "mem_used_bytes": 40_000_000_000,
        "mem_total_bytes": 85_899_345_920,
        "power_w": 310,
        "power_limit_w": 600,
        "sm_clock_mhz": 780,
        "temp_c": 93,
        "throttle_reasons": 64,
        "energy_j": 123456.789,
        "own_mem_bytes": 30_000_000_000,
        "foreign_mem_bytes": 10_000_000_000,
    }
    absent = {reading.reason for reading in readings.values() if reading.value is None}
    assert absent == {"not supported by this GPU (NVML_ERROR_NOT_SUPPORTED)"}
    assert len({key for key, _ in readings}) == 4


def test_mig_slice_has_memory_and_its_gpu_the_rest(cases: Path) -> None:
    readings = first_readings(cases / "c060_mig.json")
    whole, part = values(readings, gpu0), values(readings, mig_slice)
    assert (part["mem_used_bytes"], part["mem_total_bytes"]) == (9_000_000_000, 42_949_672_960)
    assert (whole["power_w"], whole["temp_c"]) == (300, 60)
    for key in (gpu0, mig_slice):
        reading = readings[key, "util_pct"]
        assert reading.value is None
        assert reading.reason == "not supported on MIG (NVML_ERROR_NOT_SUPPORTED)"
    assert whole["mem_used_bytes"] is None
    assert "ask the MIG slice" in str(readings[gpu0, "mem_used_bytes"].reason)
    assert part["power_w"] is None


@pytest.mark.parametrize("driver", ["not_supported", "success_zero"])
def test_unified_memory_is_the_systems_and_says_so(cases: Path, driver: str) -> None:
    # One driver answers with an error, another with success and zeros: the same machine.
    path = cases / f"c061_gb10_{driver}.json"
    readings = first_readings(path)
    for metric in ("mem_used_bytes", "mem_total_bytes"):
        assert readings[gpu0, metric].value is None
        assert "unified memory" in str(readings[gpu0, metric].reason)
    assert readings[gpu0, "unified_mem_total_bytes"].value == 127_600_748 * 1024
    assert readings[gpu0, "unified_mem_used_bytes"].value == (127_600_748 - 118_566_368) * 1024
    (device,) = ReplaySensors(path).devices()
    assert device.facts()["unified_memory"] is True
    assert device.facts()["memory_bytes"] is None


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("c063_lib_missing", "no NVIDIA driver library on this machine (NVML_ERROR_LIBRARY_NOT_FOUND)"),
        ("c068_driver_mismatch", "updated under the running system"),
    ],
)
def test_driver_that_does_not_start_is_one_reason(cases: Path, case: str, words: str) -> None:
    sampler = GpuSampler(ReplaySensors(cases / f"{case}.json"))
    assert words in str(sampler.open())
    assert list(sampler.close()) == []


def test_driver_that_fails_on_the_way_leaves_one_gap_and_one_warning(cases: Path) -> None:
    clock = Clock()
    sampler = GpuSampler(ReplaySensors(cases / "c068_fails_after_60_samples.json"), clock=clock)
    assert sampler.open() is None
    rows: list[Reading] = []
    for _ in range(600):  # one minute
        rows += sampler.sample()
        clock.now_s += 0.1
    power = [row for row in rows if (row.key, row.metric) == (gpu0, "power_w")]
    assert [row.value for row in power[:60]] == [300] * 60
    assert [row.value for row in power[60:]] == [None]
    assert power[60].reason == "the driver failed to answer (NVML_ERROR_UNKNOWN)"
    gaps = [row for row in rows if row.reason == power[60].reason]
    assert len({(row.key, row.metric) for row in gaps}) == len(gaps)  # one row for each series that ended
    assert {row.metric for row in gaps if row.key == gpu1} == {
        *known({(r.key, r.metric): r for r in rows if r.value is not None}, gpu1)
    } - {"energy_j"}
    assert sampler.warning == f"{gpu0}: power_w stopped answering: {power[60].reason}"


class RecoveringSensors(GpuSensors):
    """One GPU; silent while `down`. Counts what it is asked."""

    def __init__(self) -> None:
        self.down: Unreadable | None = None
        self.opened = 0
        self.asked: list[str] = []

    def open(self) -> str | None:
        self.opened += 1
        return None

    def devices(self) -> tuple[GpuDevice, ...]:
        return (GpuDevice(key="GPU-a", name="fake"),)

    def read(self, index: int, metrics: Sequence[str]) -> list[Answer]:
        self.asked += metrics
        if self.down is not None:
            return [self.down] * len(metrics)
        return [Unreadable("not supported", True) if m == "temp_c" else 1.0 for m in metrics]

    def drain(self, index: int) -> list[PowerSample] | Unreadable:
        return Unreadable("not supported", True)

    def processes(self, index: int) -> list[GpuProcess] | Unreadable:
        return []

    def system_memory(self) -> tuple[int, int] | None:
        return None

    def close(self) -> None:
        pass


def sampled(sensors: GpuSensors) -> tuple[GpuSampler, Clock]:
    clock = Clock()
    sampler = GpuSampler(sensors, clock=clock)
    assert sampler.open() is None
    return sampler, clock


def test_unsupported_metric_is_asked_for_once() -> None:
    sensors = RecoveringSensors()
    sampler, clock = sampled(sensors)
    rows: list[Reading] = []
    for _ in range(50):
        rows += sampler.sample()
        clock.now_s += retry_s
    assert sensors.asked.count("temp_c") == 1
    assert [(r.value, r.reason) for r in rows if r.metric == "temp_c"] == [(None, "not supported")]
    assert sampler.warning is None


def test_silent_driver_is_reopened_at_a_slow_pace_and_the_series_goes_on() -> None:
    sensors = RecoveringSensors()
    sampler, clock = sampled(sensors)
    list(sampler.sample())
    sensors.down = Unreadable("hiccup", permanent=False)
    for _ in range(100):
        clock.now_s += retry_s / 50
        list(sampler.sample())
    assert 2 <= sensors.opened <= 4
    assert sensors.asked.count("power_w") <= 5
    sensors.down = None
    clock.now_s += retry_s
    assert [r.value for r in sampler.sample() if r.metric == "power_w"] == [1.0]


def test_what_hardly_changes_is_written_when_it_changes() -> None:
    sampler, clock = sampled(RecoveringSensors())
    first = list(sampler.sample())
    clock.now_s += 10
    second = list(sampler.sample())
    once = {name for name, metric in metric_table.items() if metric.on_change}
    assert {r.metric for r in first} - {r.metric for r in second} == {
        *once,
        "temp_c",
        power_samples,
        "energy_j",
    }


def test_each_metric_is_asked_for_at_its_own_pace() -> None:
    sensors = RecoveringSensors()
    sampler, clock = sampled(sensors)
    jitter = itertools.cycle((0.01, -0.01, 0.004, -0.004))  # as the thread's schedule has it
    for tick in range(50):  # ten seconds
        clock.now_s = tick * sampler.interval_s + next(jitter)
        list(sampler.sample())
    asked = {metric: sensors.asked.count(metric) for metric in gpu_metrics}
    assert asked["power_w"] == asked["util_pct"] == 50
    for metric in ("sm_clock_mhz", "throttle_reasons", "mem_used_bytes", "pcie_tx_bytes"):
        assert 9 <= asked[metric] <= 10
    for metric in ("power_avg_w", "throttled_power_s", "nvlink_tx_bytes"):
        assert asked[metric] == 2
    assert asked["energy_j"] == 1
    list(sampler.close())
    assert sensors.asked.count("energy_j") == 2
    assert sensors.asked.count("power_w") == 50


def test_error_that_comes_late_is_a_gap_even_where_the_driver_calls_it_unsupported() -> None:
    sensors = RecoveringSensors()
    sampler, clock = sampled(sensors)
    list(sampler.sample())
    sensors.down = Unreadable("not supported", permanent=True)
    clock.now_s += 1
    assert [r.reason for r in sampler.sample() if r.metric == "power_w"] == ["not supported"]
    sensors.down = None
    clock.now_s += retry_s
    assert [r.value for r in sampler.sample() if r.metric == "power_w"] == [1.0]
    assert "power_w stopped answering" in str(sampler.warning)


def test_power_samples_are_drained_once_a_second_and_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "case.json"
    entry = {"uuid": "GPU-a", "name": "x", "power_samples": {"interval_ms": 20, "mw": [500_000, 100_000]}}
    path.write_text(json.dumps({"gpus": [entry]}))
    clock = Clock()
    sampler = GpuSampler(ReplaySensors(path, lambda: 10**9 + round(clock.now_s * 1e9)), clock=clock)
    assert sampler.open() is None
    counts = []
    rows: list[Reading] = []
    for tick in range(13):
        clock.now_s = tick * sampler.interval_s
        now = [r for r in sampler.sample() if r.metric == power_samples]
        counts.append(len(now))
        rows += now
    assert {tick: n for tick, n in enumerate(counts) if n} == {5: 50, 10: 50}
    clock.now_s = 2.5
    rows += [r for r in sampler.close() if r.metric == power_samples]
    assert len(rows) == 125
    assert {b.t_ns - a.t_ns for a, b in itertools.pairwise(rows)} == {20_000_000}
    assert [r.value for r in rows[:3]] == [500, 100, 500]


def test_memory_of_others_is_what_is_left_of_the_whole(tmp_path: Path, cases: Path) -> None:
    data: dict[str, Any] = json.loads((cases / "c057_util100_low_power.json").read_text())
    data["gpus"][0]["procs"].append({"pid": 1, "used": 6_000_000_000})
    data["gpus"][1]["procs"] = [{"pid": 1, "used": 40_000_000_000}]
    (tmp_path / "case.json").write_text(json.dumps(data))
    readings = first_readings(tmp_path / "case.json")
    assert readings[gpu0, "own_mem_bytes"].value == 30_000_000_000
    assert readings[gpu0, "foreign_mem_bytes"].value == 10_000_000_000
    assert readings[gpu1, "own_mem_bytes"].value == 0  # the list is whole, and we are not on it
    assert readings[gpu1, "foreign_mem_bytes"].value == 40_000_000_000


def test_pids_of_another_namespace_give_no_number(cases: Path) -> None:
    readings = first_readings(cases / "c066_pid_host_namespace.json")
    for metric in process_metrics:
        assert readings[gpu0, metric].value is None
        assert str(readings[gpu0, metric].reason).startswith("pid namespace")
    assert readings[gpu0, "mem_used_bytes"].value == 40_000_000_000


def test_driver_that_hides_what_a_process_uses_gives_no_number(tmp_path: Path, cases: Path) -> None:
    data: dict[str, Any] = json.loads((cases / "c057_util100_low_power.json").read_text())
    data["gpus"][0]["procs"] = [{"pid": "SELF", "used": None}]
    (tmp_path / "case.json").write_text(json.dumps(data))
    readings = first_readings(tmp_path / "case.json")
    assert readings[gpu0, "own_mem_bytes"].value is None
    assert readings[gpu0, "foreign_mem_bytes"].value is None


@pytest.mark.parametrize(
    ("value", "metric"), [(0, "power_limit_mw"), (0xFFFFFFFF, "power_mw"), (0, "mem_total")]
)
def test_success_that_cannot_be_true_is_no_value(
    tmp_path: Path, cases: Path, value: int, metric: str
) -> None:
    data: dict[str, Any] = json.loads((cases / "c057_util100_low_power.json").read_text())
    data["gpus"][0][metric] = value
    (tmp_path / "case.json").write_text(json.dumps(data))
    name = {"power_limit_mw": "power_limit_w", "power_mw": "power_w", "mem_total": "mem_total_bytes"}[metric]
    reading = first_readings(tmp_path / "case.json")[gpu0, name]
    assert reading.value is None
    assert reading.reason


def test_field_that_the_file_lacks_is_not_supported(tmp_path: Path) -> None:
    path = tmp_path / "case.json"
    path.write_text(json.dumps({"gpus": [{"uuid": "GPU-a", "name": "x", "util_gpu": 0, "mem_total": 5}]}))
    readings = first_readings(path)
    assert readings["GPU-a", "util_pct"].value == 0  # a zero that was read is a zero
    assert readings["GPU-a", "power_w"].reason == "not supported by this GPU (NVML_ERROR_NOT_SUPPORTED)"


def test_answers_of_one_gpu_may_change_alone(tmp_path: Path, cases: Path) -> None:
    data: dict[str, Any] = json.loads((cases / "c057_util100_low_power.json").read_text())
    data["after_samples"] = {"1": {"1": {"temp_c": 91, "power_mw": {"error": "NVML_ERROR_GPU_IS_LOST"}}}}
    path = tmp_path / "case.json"
    path.write_text(json.dumps(data))
    clock = Clock()
    sampler = GpuSampler(ReplaySensors(path), clock=clock)
    list(sampler.sample())
    clock.now_s = 1
    second = {(r.key, r.metric): r for r in sampler.sample()}
    assert (second[gpu0, "temp_c"].value, second[gpu1, "temp_c"].value) == (60, 91)
    assert second[gpu1, "power_w"].reason == "the GPU has fallen off the bus (NVML_ERROR_GPU_IS_LOST)"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"gpus": [{"name": "x"}]}', '{"gpus": 3}'])
def test_file_that_is_no_recording_is_a_usage_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "case.json"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        open_sensors(f"replay:{path}")
    assert caught.value.where == str(path)


def test_unknown_source_of_readings_is_refused_with_the_choices() -> None:
    with pytest.raises(UsageError) as caught:
        open_sensors("nvmml")
    assert caught.value.expected == "nvml, none or replay:FILE"
    assert "nvml" in str(caught.value.remedy)
    assert open_sensors("none") is None
