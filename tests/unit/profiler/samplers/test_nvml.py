"""NVML's answers through a stand-in for its Python module: every error becomes a reason."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from profiler.samplers.nvml import NvmlSensors
from profiler.samplers.sensors import Unreadable, gpu_metrics


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.value = value


class FakeNvml:
    """Two GPUs, the second cut into one MIG slice. `fail` maps function names to NVML error numbers."""

    NVMLError = NVMLError
    NVML_ERROR_NOT_SUPPORTED = 3
    NVML_ERROR_LIBRARY_NOT_FOUND = 12
    NVML_ERROR_GPU_IS_LOST = 15
    NVML_CLOCK_SM, NVML_TEMPERATURE_GPU, NVML_FI_DEV_POWER_INSTANT = 1, 0, 186

    def __init__(self, **fail: int) -> None:
        self.fail = fail
        self.instant_power_mw: int | None = 250_000
        self.open = 0
        self.answers: dict[str, Callable[..., Any]] = {
            "nvmlInit": self._init,
            "nvmlShutdown": self._shutdown,
            "nvmlDeviceGetCount": lambda: 2,
            "nvmlDeviceGetHandleByIndex": lambda i: f"gpu{i}",
            "nvmlDeviceGetName": lambda h: "Fake H200",
            "nvmlDeviceGetUUID": lambda h: {"gpu0": "GPU-0", "gpu1": "GPU-1", "slice": "MIG-1"}[h],
            "nvmlDeviceGetMigMode": lambda h: [int(h == "gpu1"), 0],
            "nvmlDeviceGetMaxMigDeviceCount": lambda h: 2,
            "nvmlDeviceGetMigDeviceHandleByIndex": self._slice,
            "nvmlDeviceGetMemoryInfo": lambda h: SimpleNamespace(used=5, total=100),
            "nvmlDeviceGetUtilizationRates": lambda h: SimpleNamespace(gpu=0),
            "nvmlDeviceGetEnforcedPowerLimit": lambda h: 700_000,
            "nvmlDeviceGetMaxClockInfo": lambda h, c: 1980,
            "nvmlDeviceGetPciInfo": lambda h: SimpleNamespace(busId="0000:01:00.0"),
            "nvmlDeviceGetFieldValues": self._fields,
            "nvmlDeviceGetPowerUsage": lambda h: 300_000,
            "nvmlDeviceGetClockInfo": lambda h, c: 1700,
            "nvmlDeviceGetTemperature": lambda h, s: 40,
            "nvmlDeviceGetCurrentClocksThrottleReasons": lambda h: 4,
        }

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in self.__dict__.get("answers", {}):
            raise AttributeError(name)

        def call(*arguments: Any) -> Any:
            if name in self.fail:
                raise NVMLError(self.fail[name])
            return self.answers[name](*arguments)

        return call

    def _init(self) -> None:
        self.open += 1

    def _shutdown(self) -> None:
        self.open -= 1

    def _slice(self, handle: str, place: int) -> str:
        if place > 0:
            raise NVMLError(3)
        return "slice"

    def _fields(self, handle: str, fields: list[int]) -> list[SimpleNamespace]:
        known = self.instant_power_mw is not None
        return [
            SimpleNamespace(nvmlReturn=0 if known else 3, value=SimpleNamespace(uiVal=self.instant_power_mw))
        ]


@pytest.fixture
def sensors_over(monkeypatch: pytest.MonkeyPatch) -> Callable[[FakeNvml], NvmlSensors]:
    def make(nvml: FakeNvml) -> NvmlSensors:
        monkeypatch.setitem(sys.modules, "pynvml", nvml)  # type: ignore[arg-type]
        return NvmlSensors()

    return make


Make = Callable[[FakeNvml], NvmlSensors]


def test_gpus_and_slices_are_found_and_read(sensors_over: Make) -> None:
    sensors = sensors_over(FakeNvml())
    assert sensors.open() is None
    assert [(d.key, d.slice_of, d.mig) for d in sensors.devices()] == [
        ("GPU-0", None, False),
        ("GPU-1", None, True),
        ("MIG-1", "GPU-1", True),
    ]
    assert sensors.read(0, gpu_metrics) == [0, 5, 100, 250, 700, 1700, 40, 4]
    facts = sensors.devices()[0].facts()
    assert (facts["uuid"], facts["memory_bytes"], facts["power_limit_w"]) == ("GPU-0", 100, 700)


def test_mean_power_serves_where_instant_power_is_unknown(sensors_over: Make) -> None:
    nvml = FakeNvml()
    nvml.instant_power_mw = None
    sensors = sensors_over(nvml)
    sensors.open()
    assert sensors.read(0, ["power_w"]) == [300]
    nvml.fail["nvmlDeviceGetFieldValues"] = 13  # a driver without the call itself
    assert sensors.read(0, ["power_w"]) == [300]


def test_error_of_one_reading_is_its_reason(sensors_over: Make) -> None:
    nvml = FakeNvml(nvmlDeviceGetUtilizationRates=3, nvmlDeviceGetTemperature=15)
    sensors = sensors_over(nvml)
    sensors.open()
    util, temp, clock = sensors.read(0, ["util_pct", "temp_c", "sm_clock_mhz"])
    assert util == Unreadable("not supported by this GPU (NVML_ERROR_NOT_SUPPORTED)", permanent=True)
    assert temp == Unreadable("the GPU has fallen off the bus (NVML_ERROR_GPU_IS_LOST)", permanent=False)
    assert clock == 1700


def test_error_number_without_a_name_is_still_a_reason(sensors_over: Make) -> None:
    sensors = sensors_over(FakeNvml(nvmlDeviceGetTemperature=4711))
    sensors.open()
    (temp,) = sensors.read(0, ["temp_c"])
    assert temp == Unreadable("the driver failed to answer (NVML error 4711)", permanent=False)


def test_missing_library_is_a_reason(sensors_over: Make) -> None:
    nvml = FakeNvml(nvmlInit=12)
    sensors = sensors_over(nvml)
    assert sensors.open() == "no NVIDIA driver library on this machine (NVML_ERROR_LIBRARY_NOT_FOUND)"
    sensors.close()
    assert nvml.open == 0


def test_missing_module_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert NvmlSensors().open() == "the Python package nvidia-ml-py is not installed"


def test_lost_gpu_does_not_hide_the_others(sensors_over: Make) -> None:
    nvml = FakeNvml()

    def handle(index: int) -> str:
        if index == 0:
            raise NVMLError(15)
        return "gpu1"

    nvml.answers["nvmlDeviceGetHandleByIndex"] = handle
    sensors = sensors_over(nvml)
    assert sensors.open() is None
    assert [d.key for d in sensors.devices()] == ["GPU-1", "MIG-1"]


def test_opening_again_and_closing_twice_are_balanced(sensors_over: Make) -> None:
    nvml = FakeNvml()
    sensors = sensors_over(nvml)
    sensors.open()
    sensors.open()
    assert nvml.open == 1
    sensors.close()
    sensors.close()
    assert nvml.open == 0
    assert sensors.devices() == ()
