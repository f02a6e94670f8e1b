"""The seam between GPU sampling and what a driver can answer: devices, readings, or why there are none.

Real GPUs answer through nvml.py, recorded ones through replay.py. Knows nothing of pace or logs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple, Protocol


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Why a reading has no value. Not worth asking again after a permanent reason at the first try."""

    reason: str
    permanent: bool


Answer = float | Unreadable | None  # None: nothing to say yet (a rate needs two looks)


class PowerSample(NamedTuple):
    """One value of the driver's own 20 ms series."""

    t_ns: int  # CLOCK_MONOTONIC
    watts: float


class GpuProcess(NamedTuple):
    """A process that holds memory of a GPU."""

    pid: int
    used_bytes: int | None  # None: the driver does not say


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuDevice:
    """A GPU or a MIG slice of one, with the facts that do not change. Unknown facts are None."""

    key: str  # NVML's uuid: GPU-… or MIG-…
    name: str
    index: int | None = None  # NVML's number of the GPU, for a slice that of its GPU
    slice_of: str | None = None  # the uuid of the GPU that a MIG slice belongs to
    gpu_instance: int | None = None  # of a MIG slice
    compute_instance: int | None = None
    mig: bool = False  # the slice itself, or a GPU cut into slices
    unified_memory: bool = False  # the GPU has no memory apart from the host's
    pci_bus_id: str | None = None
    memory_bytes: int | None = None
    power_limit_w: float | None = None
    max_sm_clock_mhz: int | None = None

    def facts(self) -> dict[str, object]:
        """As listed in run.json; `key` is called uuid there."""
        listed = asdict(self)
        return {"uuid": listed.pop("key"), **listed}


class GpuSensors(Protocol):
    """What a driver can answer. No method raises over a missing sensor."""

    def open(self) -> str | None:
        """Connect, or connect again; returns why that is impossible, or None."""
        ...

    def devices(self) -> tuple[GpuDevice, ...]:
        """GPUs in NVML order, each followed by its MIG slices."""
        ...

    def read(self, index: int, metrics: Sequence[str]) -> list[Answer]:
        """The metrics named, of `devices()[index]`, in order."""
        ...

    def drain(self, index: int) -> list[PowerSample] | Unreadable:
        """The driver's power samples since the last call, in time order; none from before `open`."""
        ...

    def processes(self, index: int) -> list[GpuProcess] | Unreadable:
        """Who holds memory of `devices()[index]`, by pids of this process's own namespace."""
        ...

    def system_memory(self) -> tuple[int, int] | None:
        """Total and available bytes of the host's memory: what a GPU with unified memory draws on."""
        ...

    def close(self) -> None:
        """Disconnect. Safe to call twice."""
        ...
