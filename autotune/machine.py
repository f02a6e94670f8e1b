"""What the machine offers a search: its CPU and its GPUs, asked from NVML.

Two studies may only be mixed when their machines are equal, so `Machine` is also part of a study's
identity. Honours CUDA_VISIBLE_DEVICES, as the trainer's CUDA does. Knows nothing of torch and never
starts a CUDA context.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from profiler.samplers.nvml import NvmlSensors
from profiler.samplers.sensors import GpuDevice
from profiler.visible_devices import NoneVisible, visible_devices


@dataclass(frozen=True, slots=True)
class Gpu:
    """One card as the driver names it."""

    name: str
    uuid: str
    memory_bytes: int | None  # None: the driver does not say (integrated memory)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The hardware that trials run on. `gpu_reason` says why there are no GPUs when there are none."""

    cpu: str
    cpus: int
    gpus: tuple[Gpu, ...] = ()
    gpu_reason: str | None = None

    def describe(self) -> dict[str, Any]:
        """What must be equal for two trials to be comparable. UUIDs are left out: equal cards are equal."""
        return {
            "cpu": self.cpu,
            "cpus": self.cpus,
            "gpus": [gpu.name for gpu in self.gpus],
            "gpu_memory_bytes": [gpu.memory_bytes for gpu in self.gpus],
        }


def read_machine() -> Machine:
    """Read the machine this runs on. Never raises: what cannot be read is left out with a reason."""
    gpus, reason = _read_gpus()
    return Machine(cpu=_cpu_name(), cpus=len(os.sched_getaffinity(0)), gpus=gpus, gpu_reason=reason)


def _read_gpus() -> tuple[tuple[Gpu, ...], str | None]:
    sensors = NvmlSensors()
    try:
        reason = sensors.open()
        if reason is not None:
            return (), reason
        cvd, order = (os.environ.get(f"CUDA_{name}") for name in ("VISIBLE_DEVICES", "DEVICE_ORDER"))
        return visible_gpus(sensors.devices(), cvd, order)
    finally:
        sensors.close()


def visible_gpus(
    listed: Sequence[GpuDevice], cvd: str | None, order: str | None
) -> tuple[tuple[Gpu, ...], str | None]:
    """The GPUs and MIG slices that CUDA shows, in its order where that is known, or why there are none."""
    if cvd is None:  # all of them, whatever their order
        whole = [device for device in listed if device.slice_of is None]
        return tuple(map(_gpu, whole)), None if whole else "the driver lists no GPU"
    shown = visible_devices(cvd, listed, order)
    if isinstance(shown, NoneVisible):
        return (), str(shown)
    known = {device.key: device for device in listed}
    named = [known.get(device.uuid) for device in shown]
    return tuple(
        Gpu("MIG slice", device.uuid, None) if found is None else _gpu(found)
        for device, found in zip(shown, named, strict=True)
    ), None


def _gpu(device: GpuDevice) -> Gpu:
    return Gpu(device.name, device.key, device.memory_bytes)


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
