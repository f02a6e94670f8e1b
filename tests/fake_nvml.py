"""A stand-in for nvidia-ml-py's module: machines of several kinds, whose calls can fail or answer garbage.

A whole H200, a GPU cut into a MIG slice, and a GB10 that lives in the host's memory; in any order.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

NOT_SUPPORTED, FUNCTION_NOT_FOUND, IS_LOST, UNKNOWN = 3, 13, 15, 999


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.value = value


def value_of(number: float, kind: int = 3) -> SimpleNamespace:
    names = ("dVal", "uiVal", "ulVal", "ullVal")
    return SimpleNamespace(**{names[kind]: number})


class Card:
    """One GPU of the machine. `mark` (a small number) is in every answer, so that a mix-up shows."""

    def __init__(self, uuid: str, mark: int, kind: str = "plain") -> None:
        self.uuid, self.mark, self.kind = uuid, mark, kind
        self.pci = f"00000000:{mark:02x}:00.0"
        self.total = 0 if kind == "GB10" else 100_000 + mark
        self.fields = {
            186: 250_000 + mark,
            185: 240_000 + mark,
            197: 1000 + mark,
            198: 2000 + mark,
            138: 10 + mark,
            139: 20 + mark,
            74: mark * 10**9,
            75: 0,
            77: 0,
            79: 0,
        }


class FakeNvml:
    """The module. `fail` maps a function to an error number or to the garbage that it answers."""

    NVMLError = NVMLError
    NVML_ERROR_NOT_SUPPORTED = NOT_SUPPORTED
    NVML_ERROR_NOT_FOUND = 6
    NVML_ERROR_LIBRARY_NOT_FOUND = 12
    NVML_ERROR_FUNCTION_NOT_FOUND = FUNCTION_NOT_FOUND
    NVML_ERROR_GPU_IS_LOST = IS_LOST
    NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25
    NVML_ERROR_UNKNOWN = UNKNOWN
    NVML_GPM_METRICS_GET_VERSION = 1

    def __init__(self, *cards: Card) -> None:
        self.cards = cards or (Card("GPU-0", 1), Card("GPU-1", 2, "MIG"))
        self.fail: dict[str, Any] = {}
        self.asked: list[str] = []
        self.open = 0
        self.apart: list[set[str]] = []  # pairs without access to each other's memory
        self.buffers = 0
        self.samples: dict[str, list[tuple[int, float]]] = {}  # by uuid: wall-clock µs, mW
        self.processes: list[SimpleNamespace] = []
        self.answers: dict[str, Callable[..., Any]] = {
            "nvmlInit": self._init,
            "nvmlShutdown": self._shutdown,
            "nvmlDeviceGetCount": lambda: len(self.cards),
            "nvmlDeviceGetHandleByIndex": lambda i: self.cards[i],
            "nvmlDeviceGetName": lambda h: "NVIDIA GB10" if h.kind == "GB10" else "Fake H200",
            "nvmlDeviceGetUUID": lambda h: h.uuid,
            "nvmlDeviceGetMigMode": lambda h: [int(h.kind == "MIG"), 0],
            "nvmlDeviceGetMaxMigDeviceCount": lambda h: 2,
            "nvmlDeviceGetMigDeviceHandleByIndex": self._slice,
            "nvmlDeviceGetGpuInstanceId": lambda h: 3,
            "nvmlDeviceGetComputeInstanceId": lambda h: 0,
            "nvmlDeviceGetMemoryInfo": self._memory,
            "nvmlDeviceGetUtilizationRates": lambda h: SimpleNamespace(gpu=self._whole(h, 0)),
            "nvmlDeviceGetEnforcedPowerLimit": lambda h: 700_000 + h.mark,
            "nvmlDeviceGetMaxClockInfo": lambda h, c: 1980,
            "nvmlDeviceGetPciInfo": lambda h: SimpleNamespace(busId=h.pci),
            "nvmlDeviceGetFieldValues": self._fields,
            "nvmlDeviceGetPowerUsage": lambda h: 300_000 + h.mark,
            "nvmlDeviceGetClockInfo": lambda h, c: 1700 + h.mark if c == 1 else 2600 + h.mark,
            "nvmlDeviceGetTemperature": lambda h, s: 40 + h.mark,
            "nvmlDeviceGetCurrentClocksThrottleReasons": lambda h: 4,
            "nvmlDeviceGetTotalEnergyConsumption": lambda h: 5_000_000 + h.mark,
            "nvmlDeviceGetSamples": self._samples,
            "nvmlDeviceGetComputeRunningProcesses": lambda h: self.processes,
            "nvmlDeviceGetGraphicsRunningProcesses": lambda h: [],
            "nvmlDeviceGetP2PStatus": lambda a, b, kind: 5 * ({a.uuid, b.uuid} in self.apart),
            "nvmlGpmQueryDeviceSupport": lambda h: SimpleNamespace(isSupportedDevice=int(h.kind != "GB10")),
            "nvmlGpmSampleAlloc": self._alloc,
            "nvmlGpmSampleFree": self._free,
            "nvmlGpmSampleGet": lambda h, s: s.update(mark=self._whole(h, h.mark)),
            "nvmlGpmMigSampleGet": lambda h, i, s: s.update(mark=h.mark + i),
            "nvmlGpmMetricsGet": self._compare,
            "c_nvmlGpmMetricsGet_t": lambda: SimpleNamespace(
                metrics=[SimpleNamespace(metricId=0, nvmlReturn=0, value=0.0) for _ in range(8)]
            ),
        }

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in self.__dict__.get("answers", {}):
            raise AttributeError(name)

        def call(*arguments: Any) -> Any:
            self.asked.append(name)
            failure = self.fail.get(name)
            if isinstance(failure, int) and not isinstance(failure, bool):
                raise NVMLError(failure)
            return self.answers[name](*arguments) if failure is None else failure.answer

        return call

    def _init(self) -> None:
        self.open += 1

    def _shutdown(self) -> None:
        self.open -= 1

    def _whole(self, card: Card, answer: Any) -> Any:
        """A MIG driver answers some questions neither for the card nor for its slice."""
        if card.kind in ("MIG", "slice"):
            raise NVMLError(NOT_SUPPORTED)
        return answer

    def _slice(self, card: Card, place: int) -> Card:
        if place > 0:
            raise NVMLError(NOT_SUPPORTED)
        return Card(card.uuid.replace("GPU", "MIG"), card.mark + 50, "slice")

    def _memory(self, card: Card, version: int | None = None) -> SimpleNamespace:
        return SimpleNamespace(used=5 + card.mark if card.total else 0, reserved=7, total=card.total)

    def _fields(self, card: Card, fields: list[Any]) -> list[SimpleNamespace]:
        numbers = [field[0] if isinstance(field, tuple) else field for field in fields]
        found = [card.fields.get(number) for number in numbers]
        return [
            SimpleNamespace(nvmlReturn=NOT_SUPPORTED if v is None else 0, valueType=3, value=value_of(v or 0))
            for v in found
        ]

    def _samples(self, card: Card, kind: int, after_us: int) -> tuple[int, list[SimpleNamespace]]:
        newer = [s for s in self.samples.get(card.uuid, []) if s[0] > after_us]
        if not newer:
            raise NVMLError(self.NVML_ERROR_NOT_FOUND)
        return 1, [SimpleNamespace(timeStamp=t, sampleValue=value_of(mw, 1)) for t, mw in newer]

    def add_samples(self, uuid: str, *milliwatts: float, spacing_us: int = 20) -> None:
        """Samples that ended just now."""
        now_us = time.time_ns() // 1000
        times = [now_us - spacing_us * k for k in reversed(range(len(milliwatts)))]
        self.samples.setdefault(uuid, []).extend(zip(times, milliwatts, strict=True))

    def _alloc(self) -> dict[str, Any]:
        self.buffers += 1
        return {}

    def _free(self, buffer: dict[str, Any]) -> None:
        self.buffers -= 1

    def _compare(self, question: Any) -> Any:
        for metric in question.metrics[: question.numMetrics]:
            metric.value = float(question.sample2["mark"] + metric.metricId)
            metric.nvmlReturn = 0
        return question


class Garbage:
    """Something that a broken driver answers."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
