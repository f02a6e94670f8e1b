"""Copies between GPUs and host memory, on streams of their own.

A peer copy runs on the source's current stream and also waits for, and then blocks, the calling thread's
current stream of the destination: so both are side streams here. What a side stream still reads or writes
is kept from the allocator by `record_stream` (tensors) or by the ring's moments (slabs). Knows nothing of
queues or dispatch.
"""

from __future__ import annotations

import mmap
import threading
import weakref
from collections import deque
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dflash.contract.errors import DeviceError
from dflash.contract.events import Probe
from dflash.cuda import open_stream
from dflash.devices import Device, Moment, Timing
from dflash.numa_threads import run_near
from dflash.transport.carrier import Edge, Fields, allocate_like


class _Lane(NamedTuple):
    """The side streams of an edge. A copy within one GPU has one."""

    src: torch.cuda.Stream | None
    dst: torch.cuda.Stream | None


class _Pending(NamedTuple):
    """A span that can be emitted once the device has passed it."""

    timing: Timing
    probe: Probe
    name: str
    fields: Fields


class CudaCarrier:
    """See `Carrier`. Callers have bound their thread to its device."""

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._lock = threading.Lock()
        self._lanes: dict[Edge, _Lane] = {}
        self._pending: deque[_Pending] = deque()

    def copy(self, source: Tensor, edge: Edge, *, after: Moment | None = None) -> Tensor:
        """See Carrier. The destination's stream is the caller's own, so the result is ordered on it."""
        between = edge.src is not None and edge.dst is not None and edge.src is not edge.dst
        with torch.cuda.stream(self._lane(edge).src if between else None):
            if after is not None:
                after.order_stream()
            out = allocate_like(source, _torch_device(edge.dst))
            out.copy_(source, non_blocking=True)
            moment = edge.device.record()
        moment.wait()
        return out

    def start(
        self, source: Tensor, edge: Edge, *, into: Tensor | None, after: Moment | None, fields: Fields
    ) -> tuple[Tensor, Moment]:
        """See Carrier. Enqueues only."""
        lane, device = self._lane(edge), edge.device
        behind = device.record() if after is None else after
        with torch.cuda.stream(lane.dst), torch.cuda.stream(lane.src):
            behind.order_stream()
            out = allocate_like(source, _torch_device(edge.dst)) if into is None else into
            timing = device.start_timing()
            out.copy_(source, non_blocking=True)
            if timing is not None:
                timing.stop()
            moment = device.record()
        if lane.src is not None:
            source.record_stream(lane.src)
        probe = self._probe.bind("link", device.index, device.name)
        self._await(timing, probe, "copy", {**edge.fields(), **fields})
        return out, moment

    def receive(self, taps: Tensor, ready: Moment, device: Device, probe: Probe, fields: Fields) -> None:
        """See Carrier. The device waits, not the thread: the span has clock "gpu"."""
        timing = device.start_timing()
        ready.order_stream()
        if timing is not None:
            timing.stop()
        taps.record_stream(torch.cuda.current_stream(device.torch_device))
        self._await(timing, probe, "copy_wait", fields)

    def hand_over(self, taps: Tensor, ready: Moment, device: Device) -> None:
        """See Carrier. Waiting is no `copy_wait`: the stream stands still for the forward, not for a copy."""
        ready.order_stream()
        taps.record_stream(torch.cuda.current_stream(device.torch_device))

    def new_slab(self, slab_bytes: int, near: Device | None = None) -> Tensor:
        """See Carrier. Registered rather than allocated pinned: torch rounds that up to a power of two.

        A mapping of its own, as CUDA registers whole pages and refuses one that another slab has. The pages
        lie on the NUMA node of `near`, where that is known and its CPUs are ours to use.
        """
        memory = np.frombuffer(mmap.mmap(-1, slab_bytes), dtype=np.uint8)
        run_near(near.facts()["pci"] if near else None, lambda: memory.fill(0))
        failure = int(_cudart().cudaHostRegister(memory.ctypes.data, slab_bytes, 0))
        if failure:
            raise DeviceError(
                f"{slab_bytes / 1e9:.2f} GB of host memory could not be pinned (CUDA error {failure})",
                where="transport.path",
                remedy="raise the memory-lock limit (`ulimit -l`), or set transport.path=peer",
            )
        # Unpinned when the last tensor on it goes, so that no failure leaves freed memory registered.
        weakref.finalize(memory, _unpin, memory.ctypes.data).atexit = False
        with torch.inference_mode(False):
            return torch.from_numpy(memory)

    def settle(self, *, wait: bool = False) -> None:
        """See Carrier."""
        with self._lock:
            while self._pending and (wait or self._pending[0].timing.done()):
                timing, probe, name, fields = self._pending.popleft()
                probe.emit_span(name, *timing.ends_ns(), clock="gpu", **fields)

    def close(self) -> None:
        """See Carrier. Slabs go with the tensors that use them."""
        self.settle(wait=True)

    def abort(self, error: BaseException) -> None:
        """See Carrier. CUDA work ends by itself, and wakes who waits for it."""

    def _await(self, timing: Timing | None, probe: Probe, name: str, fields: Fields) -> None:
        if timing is not None:
            with self._lock:
                self._pending.append(_Pending(timing, probe, name, fields))

    def _lane(self, edge: Edge) -> _Lane:
        with self._lock:
            if edge not in self._lanes:
                src = None if edge.src is None else open_stream(edge.src.torch_device)
                within = edge.src is edge.dst
                dst = None if edge.dst is None or within else open_stream(edge.dst.torch_device)
                self._lanes[edge] = _Lane(src, dst)
            return self._lanes[edge]


def _torch_device(device: Device | None) -> torch.device:
    return torch.device("cpu") if device is None else device.torch_device


def _unpin(address: int) -> None:
    _cudart().cudaHostUnregister(address)


def _cudart() -> Any:
    """The CUDA runtime as torch binds it; its calls return an error number."""
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]
