"""GPU sensors that answer from a JSON file: for tests, and to see on any machine what another one would show.

{"gpus": [{"uuid", "name", "util_gpu", "power_mw", ..., "mig": [...]}], "init": {"error"}, "meminfo": {...},
 "after_samples": {"60": {"all" | GPU number: {"error"} | {field: value}}}}
Each field is a value or {"error": NVML error name}; an absent field counts as not supported. `after_samples`
changes the answers of a GPU once it has been read so often. Knows nothing of NVML itself.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dflash.contract.errors import UsageError
from profiler.samplers.sensors import (
    GpuDevice,
    GpuSensors,
    Unreadable,
    explain_reading,
    explain_start,
    has_unified_memory,
    judge_answer,
)

not_supported = {"error": "NVML_ERROR_NOT_SUPPORTED"}

fields = {  # metric: field of the file, in NVML's units
    "util_pct": "util_gpu",
    "mem_used_bytes": "mem_used",
    "mem_total_bytes": "mem_total",
    "power_w": "power_mw",
    "power_limit_w": "power_limit_mw",
    "sm_clock_mhz": "sm_clock_mhz",
    "temp_c": "temp_c",
    "throttle_reasons": "throttle_reasons",
}


class ReplaySensors(GpuSensors):
    """The GPUs of one file. Raises UsageError when it cannot be read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._data = json.loads(path.read_text(encoding="utf-8"))
            self._found = [
                (number, entry, device)
                for number, gpu in enumerate(self._data["gpus"])
                for entry, device in _devices_of(gpu)
            ]
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsageError(
                "the file of GPU readings cannot be used",
                where=str(path),
                found=f"{type(error).__name__}: {error}",
                expected='JSON with a list "gpus", each with "uuid" and "name"',
            ) from None
        self._reads: Counter[int] = Counter()

    def open(self) -> str | None:
        start = self._data.get("init")
        if isinstance(start, dict):
            return explain_start(start["error"])
        return None if self._found else "the file lists no GPU"

    def devices(self) -> tuple[GpuDevice, ...]:
        return tuple(device for _, _, device in self._found)

    def read(self, index: int, metrics: Sequence[str]) -> list[float | Unreadable]:
        number, entry, device = self._found[index]
        self._reads[index] += 1
        override = self._override(number, self._reads[index])
        return [
            _answer(override if "error" in override else {**entry, **override}, device, m) for m in metrics
        ]

    def system_memory(self) -> tuple[int, int] | None:
        meminfo = self._data.get("meminfo")
        return None if meminfo is None else (meminfo["MemTotal_kB"] * 1024, meminfo["MemAvailable_kB"] * 1024)

    def close(self) -> None:
        """There is nothing to disconnect from."""

    def _override(self, number: int, reads: int) -> dict[str, Any]:
        """What has changed for GPU `number` by its read number `reads`."""
        changed: dict[str, Any] = {}
        for after, changes in sorted(
            self._data.get("after_samples", {}).items(), key=lambda item: int(item[0])
        ):
            if reads > int(after):
                changed |= changes.get("all", {}) | changes.get(str(number), {})
        return changed


def _devices_of(gpu: dict[str, Any]) -> list[tuple[dict[str, Any], GpuDevice]]:
    """A GPU of the file and its MIG slices, each with the entry that answers for it."""
    parent = _describe(gpu, mig=gpu.get("mig_mode") == 1)
    slices = [
        (
            entry,
            _describe({"name": f"{gpu['name']} MIG {entry.get('profile', '')}", **entry}, True, parent.key),
        )
        for entry in gpu.get("mig", [])
    ]
    return [(gpu, parent), *slices]


def _describe(entry: dict[str, Any], mig: bool, slice_of: str | None = None) -> GpuDevice:
    known = {k: v for k, v in entry.items() if isinstance(v, int | float) and v}
    total = entry.get("mem_total", not_supported)
    limit, clock, memory = (known.get(k) for k in ("power_limit_mw", "max_sm_clock_mhz", "mem_total"))
    return GpuDevice(
        key=str(entry["uuid"]),
        name=str(entry["name"]),
        slice_of=slice_of,
        mig=mig,
        unified_memory=has_unified_memory(
            str(entry["name"]), total["error"] if isinstance(total, dict) else total, mig=mig
        ),
        pci_bus_id=entry.get("pci"),
        memory_bytes=None if memory is None else int(memory),
        power_limit_w=None if limit is None else limit / 1000,
        max_sm_clock_mhz=None if clock is None else int(clock),
    )


def _answer(entry: dict[str, Any], device: GpuDevice, metric: str) -> float | Unreadable:
    found = entry if "error" in entry else entry.get(fields[metric], not_supported)
    if isinstance(found, dict):
        return explain_reading(str(found["error"]), device, metric)
    if not isinstance(found, int | float):
        return explain_reading(not_supported["error"], device, metric)
    return judge_answer(found, device, metric)
