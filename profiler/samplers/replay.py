"""GPU sensors that answer from a JSON file: for tests, and to see on any machine what another one would show.

The form of the file is in docs/gpu-sensors.md. Each field is a value or {"error": NVML error name}; an absent
field counts as not supported. `after_samples` changes the answers of a GPU once it has been read so often.
Knows nothing of NVML itself.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from dflash.contract.errors import UsageError
from profiler.samplers import answers
from profiler.samplers.metrics import gpm_metrics, power_samples
from profiler.samplers.sensors import (
    Answer,
    GpuDevice,
    GpuProcess,
    GpuSensors,
    PowerSample,
    Unreadable,
)

missing: Final = {"error": answers.not_supported}

fields: Final = {  # metric: field of the file, in NVML's units
    "power_w": "power_mw",
    "power_avg_w": "power_avg_mw",
    "power_limit_w": "power_limit_mw",
    "energy_j": "energy_mj",
    "util_pct": "util_gpu",
    "sm_clock_mhz": "sm_clock_mhz",
    "mem_clock_mhz": "mem_clock_mhz",
    "throttle_reasons": "throttle_reasons",
    "temp_c": "temp_c",
    "mem_used_bytes": "mem_used",
    "mem_reserved_bytes": "mem_reserved",
    "mem_total_bytes": "mem_total",
    "pcie_tx_bytes": "pcie_tx_bytes",
    "pcie_rx_bytes": "pcie_rx_bytes",
    "nvlink_tx_bytes": "nvlink_tx_kib",
    "nvlink_rx_bytes": "nvlink_rx_kib",
    "throttled_power_s": "throttled_power_ns",
    "throttled_thermal_s": "throttled_thermal_ns",
    "throttled_board_s": "throttled_board_ns",
    "throttled_reliability_s": "throttled_reliability_ns",
    **{metric: metric for metric in gpm_metrics},
}


class ReplaySensors(GpuSensors):
    """The GPUs of one file. Raises UsageError when it cannot be read."""

    def __init__(self, path: Path, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._clock_ns = clock_ns
        try:
            self._data = json.loads(path.read_text(encoding="utf-8"))
            self._found = [
                (number, entry, device)
                for number, gpu in enumerate(self._data["gpus"])
                for entry, device in _devices_of(gpu, number)
            ]
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsageError(
                "the file of GPU readings cannot be used",
                where=str(path),
                found=f"{type(error).__name__}: {error}",
                expected='JSON with a list "gpus", each with "uuid" and "name"',
            ) from None
        self._reads: Counter[int] = Counter()
        self._start_ns: int | None = None  # when first opened
        self._drained: Counter[int] = Counter()  # samples given, by device

    def open(self) -> str | None:
        start = self._data.get("init")
        if isinstance(start, dict):
            return answers.explain_start(str(start["error"]))
        self._start_ns = self._start_ns or self._clock_ns()
        return None if self._found else "the file lists no GPU"

    def devices(self) -> tuple[GpuDevice, ...]:
        return tuple(device for _, _, device in self._found)

    def read(self, index: int, metrics: Sequence[str]) -> list[Answer]:
        _, _, device = self._found[index]
        self._reads[index] += 1
        entry = self._entry(index)
        return [_answer(_field(entry, fields[metric]), device, metric) for metric in metrics]

    def drain(self, index: int) -> list[PowerSample] | Unreadable:
        """The list of the file, over and over, since the sensors were opened."""
        _, _, device = self._found[index]
        told = _field(self._entry(index), "power_samples")
        try:
            if "error" in told:
                return answers.explain_reading(str(told["error"]), device, power_samples)
            return self._play_samples(index, int(told["interval_ms"] * 1e6), told["mw"])
        except (TypeError, KeyError, ArithmeticError):
            return answers.explain_reading(answers.nonsense, device, power_samples)

    def processes(self, index: int) -> list[GpuProcess] | Unreadable:
        _, _, device = self._found[index]
        listed = _field(self._entry(index), "procs")
        try:
            if isinstance(listed, dict):
                return answers.explain_reading(str(listed["error"]), device, "processes")
            own = self._data.get("self_pid", "SELF")
            if own != "SELF" and all(process["pid"] != own for process in listed):
                return answers.other_namespace
            return [
                GpuProcess(
                    os.getpid() if process["pid"] in ("SELF", own) else int(process["pid"]),
                    process["used"] if answers.is_number(process.get("used")) else None,
                )
                for process in listed
            ]
        except (TypeError, ValueError, KeyError, AttributeError):
            return answers.explain_reading(answers.nonsense, device, "processes")

    def _play_samples(self, index: int, step_ns: int, values: Sequence[Any]) -> list[PowerSample]:
        _, _, device = self._found[index]
        start_ns = self._start_ns or self._clock_ns()
        due = (self._clock_ns() - start_ns) // step_ns
        samples = []
        for place in range(self._drained[index], due):
            watts = answers.judge(values[place % len(values)], device, "power_w")
            if not isinstance(watts, Unreadable):
                samples.append(PowerSample(start_ns + (place + 1) * step_ns, watts))
        self._drained[index] = due
        return samples

    def system_memory(self) -> tuple[int, int] | None:
        meminfo = self._data.get("meminfo")
        return None if meminfo is None else (meminfo["MemTotal_kB"] * 1024, meminfo["MemAvailable_kB"] * 1024)

    def close(self) -> None:
        """There is nothing to disconnect from."""

    def _entry(self, index: int) -> dict[str, Any]:
        """What answers for a device by now."""
        number, entry, _ = self._found[index]
        override = self._override(number, self._reads[index])
        return override if "error" in override else {**entry, **override}

    def _override(self, number: int, reads: int) -> dict[str, Any]:
        """What has changed for GPU `number` by its read number `reads`."""
        changed: dict[str, Any] = {}
        for after, changes in sorted(
            self._data.get("after_samples", {}).items(), key=lambda item: int(item[0])
        ):
            if reads > int(after):
                changed |= changes.get("all", {}) | changes.get(str(number), {})
        return changed


def _devices_of(gpu: dict[str, Any], number: int) -> list[tuple[dict[str, Any], GpuDevice]]:
    """A GPU of the file and its MIG slices, each with the entry that answers for it."""
    parent = _describe(gpu, number, mig=gpu.get("mig_mode") == 1)
    slices = [
        (
            entry,
            _describe(
                {"name": f"{gpu['name']} MIG {entry.get('profile', '')}", **entry}, number, True, parent.key
            ),
        )
        for entry in gpu.get("mig", [])
    ]
    return [(gpu, parent), *slices]


def _describe(entry: dict[str, Any], number: int, mig: bool, slice_of: str | None = None) -> GpuDevice:
    known = {k: v for k, v in entry.items() if answers.is_number(v) and v}
    total = entry.get("mem_total", missing)
    limit, clock, memory = (known.get(k) for k in ("power_limit_mw", "max_sm_clock_mhz", "mem_total"))
    return GpuDevice(
        key=str(entry["uuid"]),
        name=str(entry["name"]),
        index=number,
        slice_of=slice_of,
        gpu_instance=entry.get("gpu_instance"),
        compute_instance=entry.get("compute_instance"),
        mig=mig,
        unified_memory=answers.has_unified_memory(
            str(entry["name"]), total.get("error") if isinstance(total, dict) else total, mig=mig
        ),
        pci_bus_id=entry.get("pci"),
        memory_bytes=None if memory is None else int(memory),
        power_limit_w=None if limit is None else limit / 1000,
        max_sm_clock_mhz=None if clock is None else int(clock),
    )


def _field(entry: dict[str, Any], name: str) -> Any:
    """A field's value, or {"error"}."""
    return entry if "error" in entry else entry.get(name, missing)


def _answer(found: Any, device: GpuDevice, metric: str) -> Answer:
    if isinstance(found, dict):
        return answers.explain_reading(str(found.get("error", answers.nonsense)), device, metric)
    return answers.judge(found, device, metric)
