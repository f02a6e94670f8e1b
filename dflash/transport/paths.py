"""The way of the bytes: pageable (through host memory, everybody waits), pinned (through slabs) or peer.

A path moves the taps of an item from a target to its home when it is loaded, and makes them usable by the
drafter that took it when it is unloaded. Only the last two overlap copies with work. Knows nothing of
queues or of how the home was chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from dflash.batch import HiddenStates
from dflash.contract.events import Probe
from dflash.devices import Device, DeviceSet, Moment
from dflash.transport.carrier import Carrier, Edge, Fields, allocate_like, wait_measured

unfinished_copies = 2  # of one sender: two send buffers
on_critical_path = "on_critical_path"
within = "within"  # the way from a device to itself


@dataclass(slots=True)
class Shipment:
    """A transport's bookkeeping of one item, kept in `HiddenStates.slot`."""

    tokens: int  # reserved at dispatch, until done
    resident: Device | None = None  # where the taps are; None: host memory
    handed_over: bool = False  # never copied: made on the device where they are trained on
    finished: bool = False


def shipment_of(item: HiddenStates) -> Shipment:
    """The bookkeeping of an item that was sent."""
    if not isinstance(item.slot, Shipment):
        raise TypeError(f"batch {item.batch.id} was not sent through a transport")
    return item.slot


def facts(item: HiddenStates) -> Fields:
    """The item as event columns."""
    batch = item.batch
    return {"batch": batch.id, "window": batch.window.step, "tokens": batch.tokens, "bytes": item.nbytes}


class Path(Protocol):
    """Loads on a target's thread, unloads on a drafter's."""

    def load(self, item: HiddenStates, target: int, probe: Probe) -> None:
        """Start or make the journey to `item.home`; fills in `taps`, `ready` and where they are."""

    def reserve(self, item_bytes: int) -> None:
        """Make ready for items of at most that size, before stages start."""

    def unload(self, item: HiddenStates, drafter: int, probe: Probe) -> None:
        """Make `taps` resident on the device of `drafter` and ordered on the caller's current stream."""


class PageablePath:
    """The blocking `.cpu()` baseline: fresh host memory, both copies on the stages' own threads."""

    def __init__(self, carrier: Carrier, devices: DeviceSet) -> None:
        self._carrier, self._devices = carrier, devices

    def reserve(self, item_bytes: int) -> None:
        """Nothing: every item gets fresh memory."""

    def load(self, item: HiddenStates, target: int, probe: Probe) -> None:
        """Wait for the forward, then for the copy to the host."""
        device = self._devices.targets[target]
        wait_measured(item.ready or device.record(), "gpu_wait", probe, facts(item))
        edge = Edge(device, None, "pageable")
        with probe.span("copy", **edge.fields(), **facts(item), note=on_critical_path):
            item.taps = self._carrier.copy(item.taps.detach(), edge)
        item.ready = None

    def unload(self, item: HiddenStates, drafter: int, probe: Probe) -> None:
        """Wait for the previous step, then for the copy to the device."""
        device = self._devices.drafters[drafter]
        wait_measured(device.record(), "gpu_wait", probe, facts(item))
        edge = Edge(None, device, "pageable")
        with probe.span("copy", **edge.fields(), **facts(item), note=on_critical_path):
            item.taps = self._carrier.copy(item.taps, edge)
        shipment_of(item).resident = device


class _Buffer:
    """One send buffer of a target: the copy last made from it, and its slab if it has one."""

    def __init__(self) -> None:
        self.copied: Moment | None = None
        self.slab: Tensor | None = None


class _OverlappedPath:
    """Copies run beside the stages; each target has a ring of send buffers that bounds those under way."""

    def __init__(self, carrier: Carrier, devices: DeviceSet, *, buffers: int = unfinished_copies) -> None:
        self._carrier, self._devices = carrier, devices
        # A ring is touched by its target's thread only, so it needs no lock.
        self._rings = [[_Buffer() for _ in range(buffers)] for _ in devices.targets]

    def reserve(self, item_bytes: int) -> None:
        """Pin the slabs of all targets that need some, for items of at most that size."""
        for source, ring in zip(self._devices.targets, self._rings, strict=True):
            if any(self._way(source, home) == "pinned" for home in self._devices.drafters):
                for buffer in ring:
                    buffer.slab = self._carrier.new_slab(item_bytes, source)

    def load(self, item: HiddenStates, target: int, probe: Probe) -> None:
        """Start the journey to the home drafter's device; waits only for a free send buffer."""
        source, home = self._devices.targets[target], self._devices.drafters[item.home]
        way = self._way(source, home)
        shipment_of(item).resident = home
        if way == within:
            self._hand_over(item, home)
            return
        ring = self._rings[target]
        buffer = ring[0]
        if buffer.copied is not None:
            wait_measured(buffer.copied, "copy_wait", probe, facts(item))
        if way == "pinned" and (buffer.slab is None or buffer.slab.nbytes < item.nbytes):
            # Only where nothing was reserved, or too little: pinning takes about 1 s a GB.
            with probe.span("copy_wait", **facts(item), note="slab"):
                buffer.slab = None  # the old one goes first
                buffer.slab = self._carrier.new_slab(item.nbytes, source)
        start = self._start_pinned if way == "pinned" else self._start_peer
        item.taps, item.ready = start(item, source, home, buffer)
        buffer.copied = item.ready
        ring.append(ring.pop(0))

    def unload(self, item: HiddenStates, drafter: int, probe: Probe) -> None:
        """Order the caller behind the copy; an item on another drafter's device is moved while it waits."""
        device, shipment = self._devices.drafters[drafter], shipment_of(item)
        assert item.ready is not None
        assert shipment.resident is not None
        if shipment.resident is device:
            if shipment.handed_over:
                self._carrier.hand_over(item.taps, item.ready, device)
            else:
                self._carrier.receive(item.taps, item.ready, device, probe, facts(item))
            return
        self._move(item, shipment.resident, device, probe)
        item.ready, shipment.resident = None, device

    def _move(self, item: HiddenStates, home: Device, device: Device, probe: Probe) -> None:
        """Bring an item to another drafter's device while its thread waits."""
        edge = Edge(home, device, "peer")
        with probe.span("copy", **edge.fields(), **facts(item), note=on_critical_path):
            item.taps = self._carrier.copy(item.taps, edge, after=item.ready)

    def _way(self, source: Device, home: Device) -> str:
        """How bytes get from a target's device to a drafter's: `within` (not at all), `pinned` or `peer`."""
        raise NotImplementedError

    def _hand_over(self, item: HiddenStates, device: Device) -> None:
        """The taps stay where they are; `ready` becomes the moment when they have been made."""
        item.taps, shipment_of(item).handed_over = item.taps.detach(), True
        if item.taps.is_inference():  # autograd would refuse them in the drafter
            if item.ready is not None:
                item.ready.order_stream()
            item.taps, item.ready = allocate_like(item.taps, device.torch_device).copy_(item.taps), None
        item.ready = item.ready or device.record()

    def _start_peer(
        self,
        item: HiddenStates,
        source: Device,
        home: Device,
        buffer: _Buffer,  # noqa: ARG002 - straight from the taps
    ) -> tuple[Tensor, Moment]:
        """Begin the copy; the tensor it will make at `home`, and its end."""
        edge = Edge(source, home, "peer")
        return self._carrier.start(item.taps.detach(), edge, into=None, after=item.ready, fields=facts(item))

    def _start_pinned(
        self, item: HiddenStates, source: Device, home: Device, buffer: _Buffer
    ) -> tuple[Tensor, Moment]:
        """Begin the copies down and up; the tensor the second will make at `home`, and its end."""
        taps, fields = item.taps.detach(), facts(item)
        assert buffer.slab is not None
        staged = _view(buffer.slab, taps)
        down, up = Edge(source, None, "pinned"), Edge(None, home, "pinned")
        _, landed = self._carrier.start(taps, down, into=staged, after=item.ready, fields=fields)
        return self._carrier.start(staged, up, into=None, after=landed, fields=fields)


class PeerPath(_OverlappedPath):
    """Straight to the home drafter's device; where that is the target's own, nothing is copied."""

    def _way(self, source: Device, home: Device) -> str:
        return within if source is home else "peer"


class PinnedPath(_OverlappedPath):
    """Through a slab of pinned host memory: down on a stream of the target, up on one of the drafter."""

    def _way(self, source: Device, home: Device) -> str:  # noqa: ARG002 - as asked for, whatever the devices
        return "pinned"


class AutoPath(_OverlappedPath):
    """For each pair of devices the way that was found for it; through the host where none was."""

    def __init__(self, carrier: Carrier, devices: DeviceSet, ways: Mapping[tuple[str, str], str]) -> None:
        """`ways`: `peer` or `pinned`, by names of source and destination."""
        super().__init__(carrier, devices)
        self._ways = ways

    def _way(self, source: Device, home: Device) -> str:
        return within if source is home else self._ways.get((source.name, home.name), "pinned")

    def _move(self, item: HiddenStates, home: Device, device: Device, probe: Probe) -> None:
        if self._way(home, device) == "peer":
            super()._move(item, home, device, probe)
            return
        down, up = Edge(home, None, "pageable"), Edge(None, device, "pageable")
        with probe.span("copy", **down.fields(), **facts(item), note=on_critical_path), home.active():
            item.taps = self._carrier.copy(item.taps, down, after=item.ready)
        with probe.span("copy", **up.fields(), **facts(item), note=on_critical_path):
            item.taps = self._carrier.copy(item.taps, up)


def open_path(name: str, carrier: Carrier, devices: DeviceSet, ways: Mapping[tuple[str, str], str]) -> Path:
    """The path called `name` (a choice of transport.path); `ways` are for `auto`."""
    if name == "auto":
        return AutoPath(carrier, devices, ways)
    kinds: dict[str, Callable[[Carrier, DeviceSet], Path]]
    kinds = {"pageable": PageablePath, "pinned": PinnedPath, "peer": PeerPath}
    return kinds[name](carrier, devices)


def _view(slab: Tensor, taps: Tensor) -> Tensor:
    """The first bytes of the slab in the shape and dtype of `taps`."""
    with torch.inference_mode(False):
        return slab[: taps.nbytes].view(taps.dtype).view(taps.shape)
