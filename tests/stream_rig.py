"""A transport driven from one thread on real streams, with delays where a missing rule would do damage.

For tests of `tests/gpu`. One GPU is enough: devices of their own may stand for it, so that copies are made.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from types import SimpleNamespace

import pytest
import torch

from dflash.batch import HiddenStates
from dflash.channel import ChannelClosed
from dflash.contract.events import Probe, event_schema, silent
from dflash.contract.sections import DevicesConfig, TransportChoice
from dflash.contract.split import Split
from dflash.cuda import CudaDevice
from dflash.devices import DeviceSet
from dflash.transport import open_transport
from dflash.transport.carrier import Edge

overlapped = pytest.mark.parametrize("path", ["peer", "pinned"])
item_bytes = 8 << 20
millisecond = 2_000_000  # cycles, about


def open_apart(split: str) -> DeviceSet:
    """A device for each role, several of which may stand for one GPU: between them everything is copied."""
    chosen, gpus = Split.parse(split), torch.cuda.device_count()
    devices = tuple(CudaDevice(role % gpus) for role in range(chosen.targets + chosen.drafters))
    return DeviceSet(devices[: chosen.targets], devices[chosen.targets :])


def open_shared() -> DeviceSet:
    """A target and a drafter on one device."""
    device = CudaDevice(0)
    return DeviceSet((device,), (device,))


def open_home_and_away() -> DeviceSet:
    """Drafter 0 on the target's device, drafter 1 on one of its own."""
    device, other = CudaDevice(0), CudaDevice(1 % torch.cuda.device_count())
    return DeviceSet((device,), (device, other))


def item_of(batch_id: int, taps: torch.Tensor) -> HiddenStates:
    batch = SimpleNamespace(id=batch_id, tokens=taps.shape[0], window=SimpleNamespace(step=0))
    return HiddenStates(batch=batch, taps=taps)


class ListLog:
    """Keeps event rows as dicts."""

    def __init__(self) -> None:
        self.rows: list[dict] = []

    def append(self, row: tuple) -> None:
        self.rows.append(dict(zip(event_schema.names, row, strict=True)))


class Rig:
    """A transport driven from one thread, with every stage's stream at hand and side streams to delay."""

    def __init__(
        self,
        path: str,
        *,
        devices: DeviceSet | None = None,
        queue: str = "per_drafter",
        depth: int = 2,
        log: ListLog | None = None,
    ) -> None:
        self.devices, self.path = devices or open_apart("1-1"), path
        choice = TransportChoice(queue, path, "round_robin", depth)
        probe = silent if log is None else Probe(log, "trainer")
        self.transport = open_transport(choice, self.devices, DevicesConfig(), probe)
        self.carrier = self.transport._carrier
        self.target_streams = [torch.cuda.Stream(d.torch_device) for d in self.devices.targets]
        self.drafter_streams = [torch.cuda.Stream(d.torch_device) for d in self.devices.drafters]
        self.differences: list[torch.Tensor] = []

    @contextmanager
    def on_target(self) -> Iterator[torch.device]:
        with torch.cuda.stream(self.target_streams[0]):
            yield self.devices.targets[0].torch_device

    @contextmanager
    def on_drafter(self, drafter: int = 0) -> Iterator[torch.device]:
        with torch.cuda.stream(self.drafter_streams[drafter]):
            yield self.devices.drafters[drafter].torch_device

    def edges(self, home: int = 0) -> list[Edge]:
        target, drafter = self.devices.targets[0], self.devices.drafters[home]
        if self.path == "peer":
            return [Edge(target, drafter, "peer")]
        return [Edge(target, None, "pinned"), Edge(None, drafter, "pinned")]

    def on_lane(self, edge: Edge) -> AbstractContextManager[None]:
        """The side stream that carries the copies of an edge."""
        lane = self.carrier._lane(edge)
        return torch.cuda.stream(lane.src or lane.dst)

    @contextmanager
    def on_arrival(self, edge: Edge) -> Iterator[None]:
        """The streams on which the results of an edge's copies are allocated."""
        lane = self.carrier._lane(edge)
        with torch.cuda.stream(lane.dst), torch.cuda.stream(lane.src):
            yield

    def delay(self, edge: Edge, cycles: int) -> None:
        with self.on_lane(edge):
            torch.cuda._sleep(cycles)

    def delay_all(self, cycles: int, home: int = 0) -> None:
        for edge in self.edges(home):
            self.delay(edge, cycles)

    def send(self, tag: int) -> None:
        """An item full of `tag`, of which nobody else keeps the memory."""
        with self.on_target() as device:
            self.transport.send(item_of(tag, full(tag, device)), 0, silent)

    def check(self, tag: int, drafter: int = 0) -> None:
        """Receive, compare on the drafter's stream, count what differs, and let the memory go."""
        with self.on_drafter(drafter):
            item = self.transport.recv(drafter, silent)
            assert item.batch.id == tag
            self.differences.append((item.taps != tag).sum())
            self.transport.done(item)

    def mismatches(self) -> int:
        self.transport.close()
        with self.on_drafter(), pytest.raises(ChannelClosed):
            self.transport.recv(0, silent)
        synchronize(self.devices)
        return sum(int(difference) for difference in self.differences)


def synchronize(devices: DeviceSet) -> None:
    for device in (*devices.targets, *devices.drafters):
        torch.cuda.synchronize(device.torch_device)


def full(tag: int, device: torch.device) -> torch.Tensor:
    return torch.full((item_bytes // 4 // 64, 64), tag, dtype=torch.int32, device=device)


def poison(place: torch.device) -> None:
    """Write over memory of an item's size that the current stream's allocator believes to be free."""
    taken = [full(-1, place) for _ in range(4)]
    del taken
