"""What the machine offers a search: its CPU and its GPUs, asked from NVML.

Two studies may only be mixed when their machines are equal, so `Machine` is also part of a study's
identity. Honours CUDA_VISIBLE_DEVICES, as the trainer's CUDA does. Knows nothing of torch and never
starts a CUDA context.
"""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any


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
    if gpus:
        gpus = visible_gpus(gpus, os.environ.get("CUDA_VISIBLE_DEVICES"))
        reason = None if gpus else "CUDA_VISIBLE_DEVICES hides every GPU"
    return Machine(cpu=_cpu_name(), cpus=len(os.sched_getaffinity(0)), gpus=gpus, gpu_reason=reason)


def visible_gpus(gpus: tuple[Gpu, ...], visible: str | None) -> tuple[Gpu, ...]:
    """The GPUs that CUDA shows under a CUDA_VISIBLE_DEVICES text, in its order.

    As CUDA does, an entry that fits no GPU hides itself and everything after it.
    """
    if visible is None:
        return gpus
    shown: list[Gpu] = []
    for entry in (part.strip() for part in visible.split(",")):
        if entry.isdecimal():
            matches = list(gpus[int(entry) : int(entry) + 1])
        else:
            matches = [gpu for gpu in gpus if entry and gpu.uuid.startswith(entry)]
        if len(matches) != 1 or matches[0] in shown:
            break
        shown += matches
    return tuple(shown)


def _read_gpus() -> tuple[tuple[Gpu, ...], str | None]:
    try:
        import pynvml
    except ImportError:
        return (), "nvidia-ml-py is not installed"
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return (), f"NVML: {error}"
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        gpus = tuple(_read_gpu(pynvml, handle) for handle in handles)
    except pynvml.NVMLError as error:
        return (), f"NVML: {error}"
    finally:
        pynvml.nvmlShutdown()
    return gpus, None if gpus else "NVML lists no GPU"


def _read_gpu(pynvml: Any, handle: Any) -> Gpu:
    try:
        memory_bytes: int | None = int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)
    except pynvml.NVMLError:
        memory_bytes = None
    return Gpu(pynvml.nvmlDeviceGetName(handle), pynvml.nvmlDeviceGetUUID(handle), memory_bytes)


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
