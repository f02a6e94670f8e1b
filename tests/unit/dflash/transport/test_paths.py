"""Paths: when a send buffer is free again, what a drafter is ordered behind, and what counts as waiting."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
import torch

from dflash.batch import HiddenStates
from dflash.contract.events import Probe, event_schema
from dflash.devices import DeviceSet, LogicalDevice
from dflash.transport.paths import AutoPath, PageablePath, PeerPath, PinnedPath, Shipment
from tests.asked_moment import AskedMoment


class ListLog:
    """Keeps event rows as dicts."""

    def __init__(self) -> None:
        self.rows: list[dict] = []

    def append(self, row: tuple) -> None:
        self.rows.append(dict(zip(event_schema.names, row, strict=True)))


class ManualCarrier:
    """Copies at once, but says so only when the test ends the copy."""

    def __init__(self) -> None:
        self.started: list[SimpleNamespace] = []
        self.copied: list[SimpleNamespace] = []
        self.received: list[object] = []
        self.slabs: list[int] = []
        self.near: list[object] = []
        self.handed: list[object] = []

    def copy(self, source, edge, *, after=None):
        self.copied.append(SimpleNamespace(edge=edge, after=after))
        return source.clone()

    def start(self, source, edge, *, into, after, fields):
        moment = AskedMoment()
        self.started.append(SimpleNamespace(source=source, edge=edge, after=after, moment=moment))
        out = source.clone() if into is None else into.copy_(source)
        return out, moment

    def receive(self, taps, ready, device, probe, fields):
        self.received.append(ready)

    def hand_over(self, taps, ready, device):
        self.handed.append(ready)

    def new_slab(self, slab_bytes, near=None):
        self.near.append(near)
        self.slabs.append(slab_bytes)
        return torch.empty(slab_bytes, dtype=torch.uint8)


devices = DeviceSet((LogicalDevice(0), LogicalDevice(1)), (LogicalDevice(2), LogicalDevice(3)))


def item(batch_id: int, home: int = 0, tokens: int = 3) -> HiddenStates:
    batch = SimpleNamespace(id=batch_id, tokens=tokens, window=SimpleNamespace(step=0))
    states = HiddenStates(batch=batch, taps=torch.full((tokens, 4), float(batch_id)), home=home)
    states.slot = Shipment(tokens)
    return states


@pytest.fixture
def log() -> ListLog:
    return ListLog()


def load_in_thread(path, states: HiddenStates, probe: Probe, target: int = 0) -> threading.Thread:
    thread = threading.Thread(target=path.load, args=(states, target, probe), daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("kind", [PeerPath, PinnedPath])
@pytest.mark.parametrize("buffers", [1, 2, 3])
def test_a_send_buffer_is_free_when_its_last_copy_has_ended(kind, buffers: int, log: ListLog) -> None:
    carrier = ManualCarrier()
    path, probe = kind(carrier, devices, buffers=buffers), Probe(log, "target")
    for number in range(buffers):
        path.load(item(number), 0, probe)
    waits = [row for row in log.rows if row["name"] == "copy_wait" and row["note"] != "slab"]
    assert waits == []
    last_of_first = carrier.started[len(carrier.started) // buffers - 1]
    begun = len(carrier.started)
    blocked = load_in_thread(path, item(buffers), probe)
    path.load(item(99), 1, probe)  # another target has buffers of its own
    assert last_of_first.moment.asked.wait(30)
    assert blocked.is_alive()
    assert len(carrier.started) == begun + begun // buffers
    last_of_first.moment.finish()
    blocked.join(30)
    assert not blocked.is_alive()
    waits = [row for row in log.rows if row["name"] == "copy_wait" and row["note"] != "slab"]
    assert [row["batch"] for row in waits] == [buffers]


def test_a_failed_copy_is_raised_by_the_next_use_of_its_buffer(log: ListLog) -> None:
    carrier = ManualCarrier()
    path, probe = PeerPath(carrier, devices, buffers=1), Probe(log, "target")
    path.load(item(0), 0, probe)
    carrier.started[0].moment.finish(MemoryError("no room"))
    with pytest.raises(MemoryError, match="no room"):
        path.load(item(1), 0, probe)


def test_pinned_uploads_after_the_download_from_a_slab_of_exact_size(log: ListLog) -> None:
    carrier = ManualCarrier()
    path, probe = PinnedPath(carrier, devices, buffers=1), Probe(log, "target")
    for number, tokens in enumerate((3, 2, 5, 5, 4)):
        path.load(item(number, home=1, tokens=tokens), 0, probe)
        down, up = carrier.started[-2:]
        assert up.after is down.moment
        assert (down.edge.src, down.edge.dst) == (devices.targets[0], None)
        assert (up.edge.src, up.edge.dst) == (None, devices.drafters[1])
        assert torch.equal(up.source, torch.full((tokens, 4), float(number)))
        up.moment.finish()
    assert carrier.slabs == [3 * 16, 5 * 16]  # grown to the largest item, never rounded up
    assert len({job.source.data_ptr() for job in carrier.started[5::2]}) == 1  # and used again


@pytest.mark.parametrize("kind", [PeerPath, PinnedPath])
def test_the_drafter_is_ordered_behind_the_last_copy(kind, log: ListLog) -> None:
    carrier = ManualCarrier()
    path, states = kind(carrier, devices), item(0, home=1)
    path.load(states, 0, Probe(log, "target"))
    path.unload(states, 1, Probe(log, "drafter", 1))
    assert carrier.received == [carrier.started[-1].moment]
    assert carrier.copied == []
    assert states.slot.resident is devices.drafters[1]


def test_an_item_homed_elsewhere_is_moved_behind_its_copy(log: ListLog) -> None:
    carrier = ManualCarrier()
    path, states = PeerPath(carrier, devices), item(5, home=1)
    path.load(states, 0, Probe(log, "target"))
    path.unload(states, 0, Probe(log, "drafter"))
    (move,) = carrier.copied
    assert (move.edge.src, move.edge.dst) == (devices.drafters[1], devices.drafters[0])
    assert move.after is carrier.started[0].moment
    assert states.slot.resident is devices.drafters[0]
    (span,) = [row for row in log.rows if row["name"] == "copy"]
    assert (span["stage"], span["path"], span["src"], span["dst"]) == (
        "drafter", "peer", "logical:3", "logical:2",
    )  # fmt: skip
    assert (span["batch"], span["bytes"], span["note"]) == (5, 48, "on_critical_path")


class SlowDevice(LogicalDevice):
    """Its work ends when the test says so."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.moment = AskedMoment()

    def record(self) -> AskedMoment:
        return self.moment


def test_pageable_tells_waiting_for_the_device_from_copying(log: ListLog) -> None:
    target, drafter, carrier = SlowDevice(0), SlowDevice(1), ManualCarrier()
    path, states = PageablePath(carrier, DeviceSet((target,), (drafter,))), item(0)
    loading = load_in_thread(path, states, Probe(log, "target"))
    assert target.moment.asked.wait(30)
    assert carrier.copied == []
    target.moment.finish()
    loading.join(30)
    assert states.slot.resident is None
    drafter.moment.finish()
    path.unload(states, 0, Probe(log, "drafter"))
    assert states.slot.resident is drafter
    assert [(row["name"], row["stage"], row["src"], row["dst"]) for row in log.rows] == [
        ("gpu_wait", "target", None, None),
        ("copy", "target", "logical:0", "host"),
        ("copy", "drafter", "host", "logical:1"),
    ]


def test_slabs_reserved_before_the_start_are_never_pinned_again(log: ListLog) -> None:
    carrier = ManualCarrier()
    path, probe = PinnedPath(carrier, devices), Probe(log, "target")
    path.reserve(5 * 16)
    assert carrier.slabs == [80] * 4  # two send buffers of each target
    assert carrier.near == [devices.targets[0]] * 2 + [devices.targets[1]] * 2
    for number, tokens in enumerate((1, 5, 3, 5)):
        path.load(item(number, tokens=tokens), 0, probe)
        carrier.started[-1].moment.finish()
    assert len(carrier.slabs) == 4
    assert [row for row in log.rows if row["note"] == "slab"] == []


def test_auto_goes_the_way_found_for_each_pair_and_through_the_host_where_none_was(log: ListLog) -> None:
    carrier, probe = ManualCarrier(), Probe(log, "target")
    path = AutoPath(
        carrier, devices, {("logical:0", "logical:2"): "peer", ("logical:0", "logical:3"): "pinned"}
    )
    path.load(item(0, home=0), 0, probe)
    path.load(item(1, home=1), 0, probe)
    path.load(item(2, home=0), 1, probe)
    used = [(job.edge.src, job.edge.dst, job.edge.path) for job in carrier.started]
    (t0, t1), (d0, d1) = devices.targets, devices.drafters
    down_and_up = [(t0, None, "pinned"), (None, d1, "pinned")]
    assert used == [(t0, d0, "peer"), *down_and_up, (t1, None, "pinned"), (None, d0, "pinned")]


def test_auto_reserves_only_for_targets_with_a_pair_that_needs_it() -> None:
    carrier = ManualCarrier()
    ways = {("logical:0", "logical:2"): "peer", ("logical:0", "logical:3"): "peer"}
    AutoPath(carrier, devices, ways).reserve(80)
    assert carrier.near == [devices.targets[1]] * 2


@pytest.mark.parametrize("way", ["peer", "pinned"])
def test_auto_moves_items_between_drafters_only_where_that_is_right(way: str, log: ListLog) -> None:
    carrier = ManualCarrier()
    path = AutoPath(carrier, devices, {("logical:2", "logical:3"): way})
    states = item(0, home=0)
    path.load(states, 0, Probe(log, "target"))
    arrived = states.ready
    path.unload(states, 1, Probe(log, "drafter", 1))
    d0, d1 = devices.drafters
    moved = [(job.edge.src, job.edge.dst, job.edge.path) for job in carrier.copied]
    staged = [(d0, None, "pageable"), (None, d1, "pageable")]
    assert moved == ([(d0, d1, "peer")] if way == "peer" else staged)
    assert carrier.copied[0].after is arrived


@pytest.mark.parametrize("kind", [PeerPath, AutoPath])
def test_within_a_device_an_item_is_handed_over(kind, log: ListLog) -> None:
    both = LogicalDevice(0)
    carrier = ManualCarrier()
    together = DeviceSet((both,), (both,))
    path = kind(carrier, together) if kind is PeerPath else kind(carrier, together, {})
    states = item(0)
    taps = states.taps
    path.reserve(80)
    path.load(states, 0, Probe(log, "target"))
    path.unload(states, 0, Probe(log, "drafter"))
    assert states.taps.data_ptr() == taps.data_ptr()
    assert (carrier.started, carrier.copied, carrier.slabs, log.rows) == ([], [], [], [])
    assert carrier.handed == [states.ready]
