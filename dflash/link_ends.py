"""Opens crossings between the ends of a machine's links: its GPUs, or logical devices, and host memory.

Host memory is made once for a path and shared by all that use it one after the other; those in use at once
take different slots of it. So there are never more than four buffers of the largest size. Knows nothing of
timing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from dflash.contract.events import silent
from dflash.contract.link_facts import host
from dflash.contract.sections import DevicesConfig
from dflash.crossings import Crossing, CudaCrossing, LogicalCrossing, word_bytes
from dflash.devices import Device, LogicalDevice
from dflash.links import Link
from dflash.transport.cuda_carrier import CudaCarrier

logical_copy_s = 0.02  # a copy over a paced link takes at most so long
logical_copy_bytes = 16_000_000  # more says nothing new of a paced link


class Ends(Protocol):
    """The devices of a machine and what lies between them."""

    emulated: bool

    @property
    def devices(self) -> Sequence[Device]:
        """In the order of their indices."""

    def copy_bytes(self, path: str, wanted_bytes: int) -> int:
        """The size of a copy that is sensible for the path: `wanted_bytes` or less."""

    def peer_access(self, src: str, dst: str) -> bool | None:
        """Whether the driver says that `src` reaches `dst` directly; None: not a question here."""

    def open(self, src: str, dst: str, path: str, copy_bytes: int, slot: int = 0) -> Crossing:
        """A crossing with its buffers; `slot` numbers those that copy at once in one direction."""

    def buffer_address(self, path: str) -> int | None:
        """Where the host memory of the path's last crossing lies; None where that means nothing."""

    def close(self) -> None:
        """Let go of memory and threads."""


class HostMemory:
    """Two slabs of host memory, one for each direction, that crossings take slots of."""

    def __init__(self, slab_bytes: int, new_slab: Callable[[str, int], Tensor]) -> None:
        """`new_slab`: memory for a path, of that many bytes."""
        self._slab_bytes, self._new_slab = slab_bytes, new_slab
        self._path = ""
        self._slabs: dict[bool, Tensor] = {}  # whether it is a source

    def take(self, path: str, *, is_source: bool, copy_bytes: int, slot: int) -> Tensor:
        """A slot, as words. The slabs of another path are let go first."""
        if path != self._path:
            self._slabs, self._path = {}, path
        if is_source not in self._slabs:
            self._slabs[is_source] = self._new_slab(path, self._slab_bytes).view(torch.int64)
        words = copy_bytes // word_bytes
        return self._slabs[is_source][slot * words : (slot + 1) * words]

    def address(self, path: str) -> int | None:
        """Of a slab of the path; None when it has none."""
        slab = next(iter(self._slabs.values()), None)
        return None if slab is None or path != self._path else slab.data_ptr()


class CudaEnds:
    """The GPUs of a machine, or some of them."""

    emulated = False

    def __init__(self, devices: Sequence[Device], largest_bytes: int) -> None:
        """`largest_bytes`: of all crossings that copy in one direction at once."""
        self.devices = devices
        self._places = {device.name: device.torch_device for device in self.devices}
        self._memory = HostMemory(largest_bytes, _cuda_host_slab)
        self._opened = 0

    def copy_bytes(self, path: str, wanted_bytes: int) -> int:  # noqa: ARG002 - all paths carry it
        """See Ends."""
        return wanted_bytes

    def peer_access(self, src: str, dst: str) -> bool | None:
        """See Ends."""
        if host in (src, dst):
            return None
        return bool(torch.cuda.can_device_access_peer(self._places[src], self._places[dst]))

    def open(self, src: str, dst: str, path: str, copy_bytes: int, slot: int = 0) -> Crossing:
        """See Ends."""
        self._opened += 1
        source, destination = (
            self._memory.take(path, is_source=end == src, copy_bytes=copy_bytes, slot=slot)
            if end == host
            else torch.empty(copy_bytes // word_bytes, dtype=torch.int64, device=self._places[end])
            for end in (src, dst)
        )
        return CudaCrossing(source, destination, seed=self._opened)

    def buffer_address(self, path: str) -> int | None:
        """See Ends."""
        return self._memory.address(path)

    def close(self) -> None:
        """See Ends. Memory goes with the process."""


class LogicalEnds:
    """Logical devices, with a paced link for each edge as transports have it."""

    emulated = True

    def __init__(
        self, count: int, config: DevicesConfig, new_link: Callable[[str, float], Link] | None = None
    ) -> None:
        """`new_link`: from a name and GB/s; without it, one with the declared latency."""
        self.devices = [LogicalDevice(index) for index in range(count)]
        self._speeds = config.declared_speeds
        latency_us = config.link_latency_us
        self._new_link = new_link or (
            lambda name, speed: Link(name, gigabytes_per_s=speed, latency_us=latency_us)
        )
        self._links: dict[tuple[str, str, str], Link] = {}
        self._opened = 0

    def copy_bytes(self, path: str, wanted_bytes: int) -> int:
        """See Ends."""
        paced = int(self._speeds[path] * 1e9 * logical_copy_s)
        return max(min(wanted_bytes, logical_copy_bytes, paced) // word_bytes, 1) * word_bytes

    def peer_access(self, src: str, dst: str) -> bool | None:  # noqa: ARG002
        """See Ends."""
        return None

    def open(self, src: str, dst: str, path: str, copy_bytes: int, slot: int = 0) -> Crossing:  # noqa: ARG002
        """See Ends. The memory of every end is the CPU's."""
        edge = (src, dst, path)
        if edge not in self._links:
            self._links[edge] = self._new_link(f"{src}>{dst}:{path}", self._speeds[path])
        self._opened += 1
        source, destination = (torch.empty(copy_bytes // word_bytes, dtype=torch.int64) for _ in edge[:2])
        return LogicalCrossing(source, destination, self._opened, self._links[edge])

    def buffer_address(self, path: str) -> int | None:  # noqa: ARG002
        """See Ends."""
        return None

    def close(self) -> None:
        """See Ends."""
        for link in self._links.values():
            link.close()


def _cuda_host_slab(path: str, slab_bytes: int) -> Tensor:
    """Pinned as transports pin, or touched once, so that the first copy does not pay for its pages."""
    if path == "pinned":
        return CudaCarrier(silent).new_slab(slab_bytes)
    return torch.zeros(slab_bytes, dtype=torch.uint8)
