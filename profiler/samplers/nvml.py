"""GPU sensors through NVML (nvidia-ml-py), which is imported only when opened.

Asks nothing that blocks: PCIe throughput takes 20 ms a call, total energy 3 ms. Every NVML error becomes a
reason here. Knows nothing of pace or logs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from profiler.samplers.sensors import (
    GpuDevice,
    GpuSensors,
    Unreadable,
    explain_reading,
    explain_start,
    has_unified_memory,
    judge_answer,
)


@dataclass(frozen=True, slots=True)
class _Failure:
    """An NVML error in place of an answer."""

    error: str


class NvmlSensors(GpuSensors):
    """All GPUs and MIG slices that the driver shows this process."""

    def __init__(self) -> None:
        self._nvml: Any = None  # the module, while connected
        self._found: list[tuple[Any, GpuDevice]] = []  # handle, facts
        self._errors: dict[int, str] = {}  # NVML's error number to its name

    def open(self) -> str | None:
        self.close()
        try:
            import pynvml
        except ImportError:
            return "the Python package nvidia-ml-py is not installed"
        self._errors = {getattr(pynvml, n): n for n in dir(pynvml) if n.startswith("NVML_ERROR_")}
        try:
            pynvml.nvmlInit()
            self._nvml = pynvml
            self._found = list(self._find())
        except pynvml.NVMLError as error:
            self.close()
            return explain_start(self._name(error))
        return None if self._found else "the NVIDIA driver shows no GPU to this process"

    def devices(self) -> tuple[GpuDevice, ...]:
        return tuple(device for _, device in self._found)

    def read(self, index: int, metrics: Sequence[str]) -> list[float | Unreadable]:
        handle, device = self._found[index]
        answers: list[float | Unreadable] = []
        readers = self._readers()
        for metric in metrics:
            answer = self._ask(readers[metric], handle)
            if isinstance(answer, _Failure):
                answers.append(explain_reading(answer.error, device, metric))
            else:
                answers.append(judge_answer(answer, device, metric))
        return answers

    def system_memory(self) -> tuple[int, int] | None:
        import psutil

        memory = psutil.virtual_memory()
        return memory.total, memory.available

    def close(self) -> None:
        nvml, self._nvml, self._found = self._nvml, None, []
        if nvml is not None:
            with contextlib.suppress(nvml.NVMLError):  # the driver may be gone already
                nvml.nvmlShutdown()

    def _readers(self) -> dict[str, Callable[[Any], int]]:
        """How each metric is asked for, in NVML's own units."""
        nvml = self._nvml
        return {
            "util_pct": lambda h: nvml.nvmlDeviceGetUtilizationRates(h).gpu,
            "mem_used_bytes": lambda h: nvml.nvmlDeviceGetMemoryInfo(h).used,
            "mem_total_bytes": lambda h: nvml.nvmlDeviceGetMemoryInfo(h).total,
            "power_w": self._power_mw,
            "power_limit_w": nvml.nvmlDeviceGetEnforcedPowerLimit,
            "sm_clock_mhz": lambda h: nvml.nvmlDeviceGetClockInfo(h, nvml.NVML_CLOCK_SM),
            "temp_c": lambda h: nvml.nvmlDeviceGetTemperature(h, nvml.NVML_TEMPERATURE_GPU),
            "throttle_reasons": nvml.nvmlDeviceGetCurrentClocksThrottleReasons,
        }

    def _power_mw(self, handle: Any) -> int:
        """Instant power where there is such a field: the plain reading is a mean over 1 s on recent cards."""
        found = self._ask(self._nvml.nvmlDeviceGetFieldValues, handle, [self._nvml.NVML_FI_DEV_POWER_INSTANT])
        if not isinstance(found, _Failure) and found[0].nvmlReturn == 0:
            return int(found[0].value.uiVal)
        return int(self._nvml.nvmlDeviceGetPowerUsage(handle))

    def _find(self) -> Iterator[tuple[Any, GpuDevice]]:
        for index in range(self._nvml.nvmlDeviceGetCount()):
            try:
                handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
                parent = self._describe(handle)
            except self._nvml.NVMLError:
                continue  # one lost or forbidden GPU must not hide the others
            yield handle, parent
            if parent.mig:
                yield from self._find_slices(handle, parent)

    def _find_slices(self, parent_handle: Any, parent: GpuDevice) -> Iterator[tuple[Any, GpuDevice]]:
        count = self._ask(self._nvml.nvmlDeviceGetMaxMigDeviceCount, parent_handle)
        for place in range(0 if isinstance(count, _Failure) else int(count)):
            handle = self._ask(self._nvml.nvmlDeviceGetMigDeviceHandleByIndex, parent_handle, place)
            if not isinstance(handle, _Failure):
                yield handle, self._describe(handle, slice_of=parent.key)

    def _describe(self, handle: Any, slice_of: str | None = None) -> GpuDevice:
        nvml = self._nvml
        name = str(nvml.nvmlDeviceGetName(handle))
        mode = self._ask(nvml.nvmlDeviceGetMigMode, handle)
        mig = slice_of is not None or (not isinstance(mode, _Failure) and mode[0] == 1)
        memory = self._ask(nvml.nvmlDeviceGetMemoryInfo, handle)
        limit_mw = self._ask(nvml.nvmlDeviceGetEnforcedPowerLimit, handle)
        clock = self._ask(nvml.nvmlDeviceGetMaxClockInfo, handle, nvml.NVML_CLOCK_SM)
        pci = self._ask(nvml.nvmlDeviceGetPciInfo, handle)
        total = memory.error if isinstance(memory, _Failure) else memory.total
        return GpuDevice(
            key=str(nvml.nvmlDeviceGetUUID(handle)),
            name=name,
            slice_of=slice_of,
            mig=mig,
            unified_memory=has_unified_memory(name, total, mig=mig),
            pci_bus_id=None if isinstance(pci, _Failure) else str(pci.busId),
            memory_bytes=None if isinstance(total, str) or total == 0 else int(total),
            power_limit_w=None if isinstance(limit_mw, _Failure) or limit_mw == 0 else limit_mw / 1000,
            max_sm_clock_mhz=None if isinstance(clock, _Failure) else int(clock),
        )

    def _ask(self, question: Callable[..., Any], *arguments: Any) -> Any:
        """NVML's answer, or the error in its place."""
        try:
            return question(*arguments)
        except self._nvml.NVMLError as error:
            return _Failure(self._name(error))

    def _name(self, error: Any) -> str:
        return self._errors.get(error.value, f"NVML error {error.value}")
