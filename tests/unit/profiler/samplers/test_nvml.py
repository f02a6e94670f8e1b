"""NVML's answers through a stand-in for its Python module: every error becomes a reason."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from profiler.samplers import nvml as nvml_module
from profiler.samplers.metrics import gpm_metrics, gpu_metrics, memory_metrics
from profiler.samplers.nvml import NvmlSensors
from profiler.samplers.sensors import PowerSample, Unreadable
from tests.fake_nvml import FUNCTION_NOT_FOUND, IS_LOST, NOT_SUPPORTED, Card, FakeNvml, Garbage, NVMLError

Make = Callable[[FakeNvml], NvmlSensors]


@pytest.fixture
def sensors_over(monkeypatch: pytest.MonkeyPatch) -> Make:
    def make(nvml: FakeNvml) -> NvmlSensors:
        monkeypatch.setitem(sys.modules, "pynvml", nvml)  # type: ignore[arg-type]
        return NvmlSensors()

    return make


@pytest.fixture
def nvml(sensors_over: Make) -> FakeNvml:
    return FakeNvml()


@pytest.fixture
def sensors(nvml: FakeNvml, sensors_over: Make) -> NvmlSensors:
    made = sensors_over(nvml)
    assert made.open() is None
    return made


def test_gpus_and_slices_are_found(sensors: NvmlSensors) -> None:
    assert [(d.key, d.index, d.slice_of, d.mig) for d in sensors.devices()] == [
        ("GPU-0", 0, None, False),
        ("GPU-1", 1, None, True),
        ("MIG-1", 1, "GPU-1", True),
    ]
    assert sensors.devices()[2].gpu_instance == 3
    facts = sensors.devices()[0].facts()
    assert (facts["uuid"], facts["memory_bytes"], facts["power_limit_w"]) == ("GPU-0", 100_001, 700.001)


def test_who_reaches_whom_is_the_drivers_word(sensors_over: Make) -> None:
    nvml = FakeNvml(*(Card(f"GPU-{i}", i) for i in range(3)))
    sensors = sensors_over(nvml)
    sensors.open()
    nvml.apart = [{"GPU-0", "GPU-2"}]
    assert [sensors.reaches(0, other) for other in (1, 2)] == [True, False]
    nvml.fail["nvmlDeviceGetP2PStatus"] = NOT_SUPPORTED
    assert sensors.reaches(0, 1) is None
    nvml.fail["nvmlDeviceGetP2PStatus"] = Garbage("yes")
    assert sensors.reaches(0, 1) is None


def test_slices_reach_nobody(sensors: NvmlSensors) -> None:
    assert sensors.reaches(0, 2) is False


def test_every_metric_is_read_in_its_unit(sensors: NvmlSensors) -> None:
    sensors.read(0, gpm_metrics)  # the first look, of two
    assert dict(zip(gpu_metrics, sensors.read(0, gpu_metrics), strict=True)) == {
        "power_w": 250.001,
        "sm_clock_mhz": 1701,
        "util_pct": 0,
        "throttle_reasons": 4,
        "temp_c": 41,
        "mem_clock_mhz": 2601,
        "mem_used_bytes": 6,
        "mem_reserved_bytes": 7,
        "mem_total_bytes": 100_001,
        "power_limit_w": 700.001,
        "sm_active_pct": 3,
        "sm_occupancy_pct": 4,
        "tensor_active_pct": 6,
        "dram_active_pct": 11,
        "pcie_tx_bytes": 1001,
        "pcie_rx_bytes": 2001,
        "nvlink_tx_bytes": 11 * 1024,
        "nvlink_rx_bytes": 21 * 1024,
        "throttled_power_s": 1,
        "throttled_thermal_s": 0,
        "throttled_board_s": 0,
        "throttled_reliability_s": 0,
        "power_avg_w": 240.001,
        "energy_j": 5000.001,
    }


def test_the_call_that_blocks_is_never_made(sensors: NvmlSensors, nvml: FakeNvml) -> None:
    sensors.read(0, gpu_metrics)
    assert "nvmlDeviceGetPcieThroughput" not in nvml.asked
    assert nvml.asked.count("nvmlDeviceGetFieldValues") == 2  # instant power, and all other fields at once


def test_the_first_look_at_gpm_says_nothing_yet(sensors: NvmlSensors, nvml: FakeNvml) -> None:
    assert sensors.read(0, gpm_metrics) == [None] * 4
    assert sensors.read(0, ["sm_active_pct"]) == [3]
    assert nvml.buffers == 2
    sensors.close()
    assert nvml.buffers == 0


def test_gpm_of_a_slice_is_asked_of_its_gpu_by_instance(sensors: NvmlSensors) -> None:
    sensors.read(2, gpm_metrics)
    assert sensors.read(2, ["sm_active_pct"]) == [2 + 3 + 2]  # the card's mark, the instance, the metric
    (whole,) = sensors.read(1, ["sm_active_pct"])
    assert whole == Unreadable("not supported on MIG (NVML_ERROR_NOT_SUPPORTED)", permanent=True)


def test_mean_power_serves_where_instant_power_is_unknown(sensors: NvmlSensors, nvml: FakeNvml) -> None:
    del nvml.cards[0].fields[186]
    assert sensors.read(0, ["power_w"]) == [300.001]
    assert sensors.read(0, ["power_w"]) == [300.001]
    assert nvml.asked.count("nvmlDeviceGetFieldValues") == 1  # once it is known to be missing
    nvml.fail["nvmlDeviceGetFieldValues"] = FUNCTION_NOT_FOUND  # a driver without the call itself
    assert sensors.read(1, ["power_w"]) == [300.002]


def test_old_driver_has_the_old_form_of_memory(sensors: NvmlSensors, nvml: FakeNvml) -> None:
    def memory(card: Card, version: int | None = None) -> SimpleNamespace:
        if version is not None:
            raise NVMLError(25)
        return SimpleNamespace(used=9, total=50)

    nvml.answers["nvmlDeviceGetMemoryInfo"] = memory
    used, reserved, total = sensors.read(0, memory_metrics)
    assert (used, total) == (9, 50)
    assert isinstance(reserved, Unreadable)
    nvml.asked.clear()
    sensors.read(0, memory_metrics)
    assert nvml.asked == ["nvmlDeviceGetMemoryInfo"]


def test_error_of_one_reading_is_its_reason(sensors: NvmlSensors, nvml: FakeNvml) -> None:
    nvml.fail = {"nvmlDeviceGetUtilizationRates": NOT_SUPPORTED, "nvmlDeviceGetTemperature": IS_LOST}
    util, temp, clock = sensors.read(0, ["util_pct", "temp_c", "sm_clock_mhz"])
    assert util == Unreadable("not supported by this GPU (NVML_ERROR_NOT_SUPPORTED)", permanent=True)
    assert temp == Unreadable("the GPU has fallen off the bus (NVML_ERROR_GPU_IS_LOST)", permanent=False)
    assert clock == 1701


def test_error_number_without_a_name_is_still_a_reason(sensors: NvmlSensors, nvml: FakeNvml) -> None:
    nvml.fail["nvmlDeviceGetTemperature"] = 4711
    assert sensors.read(0, ["temp_c"]) == [
        Unreadable("the driver failed to answer (NVML error 4711)", permanent=False)
    ]


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), 30_000_001, "hot", None, True])
def test_a_value_that_cannot_be_is_no_value(sensors: NvmlSensors, nvml: FakeNvml, value: object) -> None:
    nvml.answers["nvmlDeviceGetPowerUsage"] = lambda h: value
    del nvml.cards[0].fields[186]
    (power,) = sensors.read(0, ["power_w"])
    assert power is None or isinstance(power, Unreadable)


def test_more_memory_in_use_than_there_is_is_no_value(sensors: NvmlSensors, nvml: FakeNvml) -> None:
    nvml.answers["nvmlDeviceGetMemoryInfo"] = lambda h, v=None: SimpleNamespace(
        used=2**44, reserved=0, total=100_001
    )
    assert isinstance(sensors.read(0, ["mem_used_bytes"])[0], Unreadable)


def test_power_samples_are_placed_on_the_monotonic_clock(sensors: NvmlSensors, nvml: FakeNvml) -> None:
    time.sleep(0.002)
    nvml.add_samples("GPU-0", 100_000, 200_000, 300_000, spacing_us=100)
    drained = sensors.drain(0)
    now_ns = time.monotonic_ns()
    assert isinstance(drained, list)
    assert [sample.watts for sample in drained] == [100, 200, 300]
    assert drained[1].t_ns - drained[0].t_ns == 100_000
    assert 0 <= now_ns - drained[-1].t_ns < 10**9
    assert sensors.drain(0) == []  # each only once
    assert sensors.drain(1) == []  # and of no other GPU


def test_power_samples_from_before_the_start_are_left_out(nvml: FakeNvml, sensors_over: Make) -> None:
    nvml.add_samples("GPU-0", *[100_000] * 50, spacing_us=20_000)
    sensors = sensors_over(nvml)
    assert sensors.open() is None
    assert sensors.drain(0) == []


def test_power_samples_go_on_when_the_wall_clock_is_set_back(
    sensors: NvmlSensors, nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    time.sleep(0.001)
    nvml.add_samples("GPU-0", 100_000)
    assert len(sensors.drain(0)) == 1  # type: ignore[arg-type]
    back_ns = 3600 * 10**9
    before = time.time_ns
    monkeypatch.setattr(nvml_module.time, "time_ns", lambda: before() - back_ns)
    time.sleep(0.001)
    nvml.samples["GPU-0"] = [(time.time_ns() // 1000, 200_000)]
    drained = sensors.drain(0)
    assert isinstance(drained, list)
    assert [sample.watts for sample in drained] == [200]


@pytest.mark.parametrize("milliwatts", [0, 0xFFFFFFFF, 10**9])
def test_power_samples_that_cannot_be_are_a_reason(
    sensors: NvmlSensors, nvml: FakeNvml, milliwatts: float
) -> None:
    time.sleep(0.001)
    nvml.add_samples("GPU-0", milliwatts)
    assert isinstance(sensors.drain(0), Unreadable)
    nvml.samples.clear()
    nvml.add_samples("GPU-0", milliwatts, 90_000)
    drained = sensors.drain(0)
    assert [s.watts for s in drained if isinstance(s, PowerSample)] == [90]  # type: ignore[union-attr]


def test_processes_of_another_namespace_are_not_taken_for_ours(
    nvml: FakeNvml, sensors_over: Make, tmp_path: Path
) -> None:
    sensors_over(nvml)
    nvml.processes = [SimpleNamespace(pid=os.getpid(), usedGpuMemory=5)]
    namespace = tmp_path / "pid"
    namespace.touch()
    for path in (namespace, tmp_path / "missing"):
        inside = NvmlSensors(path)
        assert inside.open() is None
        found = inside.processes(0)
        assert isinstance(found, Unreadable)
        assert found.reason.startswith("pid namespace")


def test_processes_are_listed_where_pids_are_the_machines(
    nvml: FakeNvml, sensors_over: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "pid"
    path.touch()
    monkeypatch.setattr(nvml_module, "_first_namespace", path.stat().st_ino)
    sensors_over(nvml)
    sensors = NvmlSensors(path)
    sensors.open()
    nvml.processes = [SimpleNamespace(pid=7, usedGpuMemory=5), SimpleNamespace(pid=8, usedGpuMemory=None)]
    assert sensors.processes(0) == [(7, 5), (8, None)]
    nvml.fail["nvmlDeviceGetComputeRunningProcesses"] = Garbage([object()])
    assert isinstance(sensors.processes(0), Unreadable)


def test_missing_library_is_a_reason(nvml: FakeNvml, sensors_over: Make) -> None:
    nvml.fail["nvmlInit"] = 12
    sensors = sensors_over(nvml)
    assert sensors.open() == "no NVIDIA driver library on this machine (NVML_ERROR_LIBRARY_NOT_FOUND)"
    sensors.close()
    assert nvml.open == 0


def test_missing_module_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert NvmlSensors().open() == "the Python package nvidia-ml-py is not installed"


def test_lost_gpu_does_not_hide_or_renumber_the_others(nvml: FakeNvml, sensors_over: Make) -> None:
    def handle(index: int) -> Card:
        if index == 0:
            raise NVMLError(IS_LOST)
        return nvml.cards[index]

    nvml.answers["nvmlDeviceGetHandleByIndex"] = handle
    sensors = sensors_over(nvml)
    assert sensors.open() is None
    assert [(d.key, d.index) for d in sensors.devices()] == [("GPU-1", 1), ("MIG-1", 1)]


def test_opening_again_and_closing_twice_are_balanced(sensors: NvmlSensors, nvml: FakeNvml) -> None:
    sensors.open()
    assert nvml.open == 1
    sensors.close()
    sensors.close()
    assert nvml.open == 0
    assert sensors.devices() == ()
