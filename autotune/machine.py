"""What the machine offers a search: its CPU and its GPUs, asked from NVML.

Two studies may only be mixed when their machines are equal, so `Machine` is also part of a study's
identity. Honours CUDA_VISIBLE_DEVICES, as the trainer's CUDA does. Knows nothing of torch and never
starts a CUDA context.
"""

from __future__ import annotations

import itertools
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import psutil

from dflash.contract.cgroup import MemoryCgroup
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
    host_bytes: int | None = None  # memory that a process may have; None: unknown
    # Pairs of GPUs, by their places in `gpus`, that reach each other's memory; None: nobody says.
    peers: frozenset[tuple[int, int]] | None = None

    @property
    def islands(self) -> tuple[tuple[int, ...], ...]:
        """Groups of GPUs within which every one is reached, over others if need be. None known: one group."""
        if self.peers is None:
            return (tuple(range(len(self.gpus))),) if self.gpus else ()
        groups: list[set[int]] = [{place} for place in range(len(self.gpus))]
        for a, b in sorted(self.peers):
            first, second = (next(group for group in groups if place in group) for place in (a, b))
            if first is not second:
                groups.remove(second)
                first |= second
        return tuple(tuple(sorted(group)) for group in groups)

    def describe(self) -> dict[str, Any]:
        """What must be equal for two trials to be comparable. UUIDs are left out: equal cards are equal."""
        return {
            "cpu": self.cpu,
            "cpus": self.cpus,
            "gpus": [gpu.name for gpu in self.gpus],
            "gpu_memory_bytes": [gpu.memory_bytes for gpu in self.gpus],
            "peers": None if self.peers is None else [list(pair) for pair in sorted(self.peers)],
        }


def read_machine() -> Machine:
    """Read the machine this runs on. Never raises: what cannot be read is left out with a reason."""
    sensors = NvmlSensors()
    gpus: tuple[Gpu, ...] = ()
    try:
        reason = sensors.open()
        if reason is None:
            cvd, order = (os.environ.get(f"CUDA_{name}") for name in ("VISIBLE_DEVICES", "DEVICE_ORDER"))
            gpus, reason = visible_gpus(sensors.devices(), cvd, order)
        peers = find_peers(gpus, sensors)
    finally:
        sensors.close()
    return Machine(
        cpu=_cpu_name(),
        cpus=len(os.sched_getaffinity(0)),
        gpus=gpus,
        gpu_reason=reason,
        host_bytes=_host_bytes(),
        peers=peers,
    )


class PeerSensors(Protocol):
    """The part of a driver that knows who reaches whom."""

    def devices(self) -> tuple[GpuDevice, ...]:
        """All devices of the machine."""
        ...

    def reaches(self, first: int, second: int) -> bool | None:
        """Whether two of them read and write each other's memory; None: the driver does not say."""
        ...


def find_peers(gpus: Sequence[Gpu], sensors: PeerSensors) -> frozenset[tuple[int, int]] | None:
    """Pairs of `gpus` with access to each other, as the driver says; None where it does not of some pair."""
    places = {device.key: place for place, device in enumerate(sensors.devices())}
    if len(gpus) < 2 or any(gpu.uuid not in places for gpu in gpus):
        return None
    found = {
        (a, b): sensors.reaches(places[gpus[a].uuid], places[gpus[b].uuid])
        for a, b in itertools.combinations(range(len(gpus)), 2)
    }
    if None in found.values():
        return None
    return frozenset(pair for pair, reached in found.items() if reached)


def _host_bytes() -> int:
    """The machine's memory, or what the process's control group leaves of it."""
    limit, there = MemoryCgroup.of_process().limit_bytes(), int(psutil.virtual_memory().total)
    return there if limit is None else min(there, limit)


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
