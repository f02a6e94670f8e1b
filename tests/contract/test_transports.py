"""What every transport promises, for every combination of queue, path and dispatch.

The same tests run on logical devices and, marked `gpu`, on the GPUs there are: with a device for each
role, several of which may stand for one GPU, so that every copy is made, and with roles that share devices.
"""

from __future__ import annotations

import functools
import itertools
import random
import threading
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest
import torch

from dflash.batch import Batch, HiddenStates, Layout, WindowInfo
from dflash.channel import ChannelClosed
from dflash.contract.config import TrainConfig
from dflash.contract.events import Probe, event_schema, silent
from dflash.contract.sections import DevicesConfig, PipelineConfig, TransportChoice, presets
from dflash.contract.split import Split
from dflash.cuda import CudaDevice
from dflash.devices import Device, DeviceSet, open_devices
from dflash.transport import Transport, open_transport

combinations = [
    TransportChoice(queue, path, dispatch, depth=2)
    for queue, path, dispatch in itertools.product(
        ("shared", "per_drafter"), ("pageable", "pinned", "peer"), ("round_robin", "least_depth", "local")
    )
]
combinations += [TransportChoice(queue, "auto", "least_depth", 2) for queue in ("shared", "per_drafter")]
every_combination = pytest.mark.parametrize("choice", combinations, ids=str)
overlapped = [choice for choice in combinations if choice.path != "pageable"]
width = 48
# Fast enough for hundreds of batches, slow enough that a copy is still under way when its handle arrives.
speeds = DevicesConfig(
    link_gigabytes_per_s=0.1, pinned_gigabytes_per_s=0.1, pageable_gigabytes_per_s=0.1, link_latency_us=100.0
)


class ListLog:
    """Keeps event rows as dicts."""

    def __init__(self) -> None:
        self.raw: list[tuple] = []

    def append(self, row: tuple) -> None:
        self.raw.append(row)

    def rows(self, **wanted: object) -> list[dict]:
        dicts = (dict(zip(event_schema.names, row, strict=True)) for row in self.raw)
        return [row for row in dicts if all(row[key] == value for key, value in wanted.items())]


def open_logical(split: str, gpus: int = 0) -> DeviceSet:
    devices = DevicesConfig(kind="logical", gpus=gpus)
    return open_devices(TrainConfig(devices=devices, pipeline=PipelineConfig(split=split)))


def open_cuda_apart(split: str) -> DeviceSet:
    """A device for each role, wrapping round the GPUs there are."""
    chosen, gpus = Split.parse(split), torch.cuda.device_count()
    devices = tuple(CudaDevice(role % gpus) for role in range(chosen.targets + chosen.drafters))
    return DeviceSet(devices[: chosen.targets], devices[chosen.targets :])


def open_cuda_shared(split: str) -> DeviceSet:
    devices = DevicesConfig(kind="cuda", gpus=min(2, torch.cuda.device_count()))
    return open_devices(TrainConfig(devices=devices, pipeline=PipelineConfig(split=split)))


openers = {
    "logical": open_logical,
    "logical, two shared": functools.partial(open_logical, gpus=2),
    "cuda": open_cuda_apart,
    "cuda, shared": open_cuda_shared,
}


@pytest.fixture(params=[pytest.param(n, marks=pytest.mark.gpu if "cuda" in n else ()) for n in openers])
def open_set(request: pytest.FixtureRequest):
    """Opens the devices of a split."""
    return openers[request.param]


@functools.cache
def payload(batch_id: int) -> tuple[torch.Tensor, int]:
    """The taps of a batch, different for each, in one of two dtypes; and their token count."""
    tokens = random.Random(batch_id).randint(4, 64)
    values = torch.randint(0, 251, (tokens, width), generator=torch.Generator().manual_seed(batch_id))
    return values.to(torch.float32 if batch_id % 2 else torch.bfloat16), tokens


def mixed_ways(devices: DeviceSet) -> dict[tuple[str, str], str]:
    """For path auto: some pairs one way, some the other, some not told."""
    pairs = [(a.name, b.name) for a in devices.all for b in devices.drafters if a is not b]
    return {pair: ("peer", "pinned")[number % 2] for number, pair in enumerate(pairs) if number % 3 != 2}


def way_of(choice: TransportChoice, source: Device, home: Device, ways: dict[tuple[str, str], str]) -> str:
    """How an item must get from one device to another."""
    if choice.path in ("pinned", "pageable"):
        return choice.path
    if source is home:
        return "within"
    return "peer" if choice.path == "peer" else ways.get((source.name, home.name), "pinned")


def open_mixed(choice: TransportChoice, devices: DeviceSet, config: DevicesConfig, probe: Probe) -> Transport:
    """With slabs reserved for small items only, so that some are pinned anew."""
    return open_transport(choice, devices, config, probe, ways=mixed_ways(devices), item_bytes=4096)


def make_batch(batch_id: int, tokens: int) -> Batch:
    window = WindowInfo(
        step=batch_id // 8,
        epoch=0,
        batches=8,
        documents=1,
        tokens=1,
        supervised_tokens=1,
        processed_tokens=1,
        denominator=1.0,
    )
    flat = torch.zeros(tokens, dtype=torch.int64)
    return Batch(
        id=batch_id,
        window=window,
        documents=(0,),
        lengths=(tokens,),
        input_ids=flat,
        positions=flat,
        document_ids=flat,
        anchors=flat[:0],
        labels=flat[:0].view(0, 2),
        weights=torch.zeros(0, 2),
        layout=Layout(rows=1, width=tokens, slots=flat, packed=True),
    )


def make_item(batch_id: int, device: torch.device, tokens: int | None = None) -> HiddenStates:
    if tokens is None:
        taps, tokens = payload(batch_id)
    else:
        taps = torch.full((tokens, width), float(batch_id))
    return HiddenStates(batch=make_batch(batch_id, tokens), taps=taps.to(device, copy=True))


@dataclass
class Haul:
    """What came out of one whole run of a transport."""

    devices: DeviceSet
    transport: Transport
    log: ListLog
    received: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))  # drafter: batch ids
    homes: dict[int, int] = field(default_factory=dict)  # batch id: home
    sender: dict[int, int] = field(default_factory=dict)  # batch id: target
    sent: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))  # target: batch ids
    taps: dict[int, torch.Tensor] = field(default_factory=dict)  # batch id: what arrived, on the CPU
    misplaced: list[str] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)

    def produce(self, target: int, ids: Iterable[int], rng: random.Random) -> None:
        device = self.devices.targets[target]
        device.bind_thread()
        probe = Probe(self.log, "target", target, device.name)
        for batch_id in ids:
            self.transport.send(make_item(batch_id, device.torch_device), target, probe)
            self.sent[target].append(batch_id)
            self.sender[batch_id] = target
            time.sleep(rng.choice((0, 0, 0.0005)))
        self.transport.close()

    def consume(self, drafter: int, rng: random.Random) -> None:
        device = self.devices.drafters[drafter]
        device.bind_thread()
        probe = Probe(self.log, "drafter", drafter, device.name)
        while True:
            try:
                item = self.transport.recv(drafter, probe)
            except ChannelClosed:
                return
            arrived = item.taps.clone()  # on the current stream, with no further wait
            self.received[drafter].append(item.batch.id)
            self.homes[item.batch.id] = item.home
            if item.slot.resident is not device or item.taps.device != device.torch_device:
                self.misplaced.append(f"batch {item.batch.id} on drafter {drafter}: {item.slot.resident}")
            time.sleep(rng.choice((0, 0.0005)))
            device.record().wait()
            self.taps[item.batch.id] = arrived.cpu()
            self.transport.done(item)

    def start(self, work, *arguments: object) -> threading.Thread:
        def guarded() -> None:
            try:
                work(*arguments)
            except Exception as error:  # noqa: BLE001 - as a stage does
                self.errors.append(error)
                self.transport.abort(error)

        thread = threading.Thread(target=guarded, daemon=True)
        thread.start()
        return thread


def ship(
    choice: TransportChoice, devices: DeviceSet, count: int, *, seed: int = 0, config: DevicesConfig = speeds
) -> Haul:
    """Send batches 0…count-1 from all targets to all drafters, with random pauses, to the end."""
    log = ListLog()
    haul = Haul(devices, open_mixed(choice, devices, config, Probe(log, "trainer")), log)
    targets, drafters = len(devices.targets), len(devices.drafters)
    threads = [
        haul.start(haul.produce, t, list(range(t, count, targets)), random.Random(f"{seed} t{t}"))
        for t in range(targets)
    ]
    threads += [haul.start(haul.consume, d, random.Random(f"{seed} d{d}")) for d in range(drafters)]
    join(threads)
    assert not haul.errors, haul.errors
    return haul


def join(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "hangs"


def wait_until(condition) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.001)


earlier_threads: set[threading.Thread] = set()  # what other tests of this process left running


@pytest.fixture(autouse=True)
def tell_earlier_threads_apart() -> None:
    earlier_threads.clear()
    earlier_threads.update(threading.enumerate())


def link_threads() -> list[str]:
    started = set(threading.enumerate()) - earlier_threads
    return [thread.name for thread in started if thread.name.startswith("link:")]


def check_books(haul: Haul, choice: TransportChoice, count: int) -> None:
    ids = [batch_id for received in haul.received.values() for batch_id in received]
    assert sorted(ids) == list(range(count)), "exactly once"
    for batch_id, arrived in haul.taps.items():
        expected, _ = payload(batch_id)
        assert arrived.dtype == expected.dtype
        assert torch.equal(arrived, expected), f"batch {batch_id} was damaged"
    assert haul.misplaced == []
    for received in haul.received.values():
        for target, sent in haul.sent.items():
            own = [batch_id for batch_id in received if batch_id in set(sent)]
            assert own == sorted(own), f"order from target {target}"
    assert haul.transport._dispatch.reserved_tokens() == (0,) * len(haul.devices.drafters)


def check_events(haul: Haul, choice: TransportChoice, count: int) -> None:
    """Takes, moves and copies in the log are those that happened, with their bytes."""
    drafter_of = {batch_id: d for d, received in haul.received.items() for batch_id in received}
    takes = haul.log.rows(kind="mark", name="take", stage="drafter")
    assert {take["batch"]: take["index"] for take in takes} == drafter_of
    assert len(takes) == count
    away = {take["batch"] for take in takes if take["note"] == "away"}
    targets, drafters = haul.devices.targets, haul.devices.drafters
    elsewhere = {b for b, d in drafter_of.items() if drafters[haul.homes[b]] is not drafters[d]}
    assert away == (set() if choice.path == "pageable" else elsewhere)
    assert choice.queue == "shared" or not elsewhere
    moves = haul.log.rows(name="copy", stage="drafter", note="on_critical_path")
    copies = haul.log.rows(name="copy")
    if choice.path != "pageable":
        assert {move["batch"] for move in moves} == away
    ways = mixed_ways(haul.devices)
    for batch_id, drafter in drafter_of.items():
        home = drafters[haul.homes[batch_id]]
        sent = way_of(choice, targets[haul.sender[batch_id]], home, ways)
        moved = way_of(choice, home, drafters[drafter], ways) if batch_id in away else "within"
        moved = "peer" if moved == "pinned" and choice.path == "pinned" else moved
        expected = {"within": 0, "peer": 1, "pinned": 2, "pageable": 2}
        found = [row["path"] for row in copies if row["batch"] == batch_id]
        assert len(found) == expected[sent] + expected[moved], (batch_id, sent, moved, found)
        assert found.count("peer") == [sent, moved].count("peer")
    for row in [*takes, *moves, *copies]:
        assert row["bytes"] == payload(row["batch"])[0].nbytes
    stages = {row["stage"] for row in copies if row not in moves}
    assert stages <= ({"target"} if choice.path == "pageable" else {"link"})
    if haul.devices.emulated:
        names = [device.name for device in haul.devices.drafters]
        for move in (move for move in moves if move["path"] == "peer"):
            assert (move["src"], move["dst"]) == (
                names[haul.homes[move["batch"]]],
                names[drafter_of[move["batch"]]],
            )


def check_time(haul: Haul, choice: TransportChoice) -> None:
    """Depths stay within bounds; spans of a thread do not overlap, nor do asynchronous copies of a link."""
    gauges = haul.log.rows(name="depth")
    used, every = {g["channel"] for g in gauges}, {name for name, _, _ in haul.transport.depths()}
    assert used <= every if choice.dispatch == "local" else used == every  # drafters without a target
    assert all(0 <= gauge["value"] <= choice.depth for gauge in gauges)
    spans = haul.log.rows(kind="span", clock="host")
    groups = defaultdict(list)
    for span in spans:
        groups[span["tid"]].append(span)
        if span["stage"] == "link":
            groups[span["src"], span["dst"], span["path"]].append(span)
    for group in groups.values():
        group.sort(key=lambda span: span["t_ns"])
        for before, after in itertools.pairwise(group):
            assert before["t_ns"] + before["dur_ns"] <= after["t_ns"], (before, after)


@every_combination
def test_every_batch_arrives_once_whole_in_order_and_at_home(open_set, choice: TransportChoice) -> None:
    """C039, C041, C044 on logical devices, and on GPUs."""
    for split, count in (("2-2", 120), ("3-1", 60), ("1-3", 60)):
        haul = ship(choice, open_set(split), count)
        check_books(haul, choice, count)
        check_events(haul, choice, count)
        check_time(haul, choice)
        assert all(depth == 0 for _, depth, _ in haul.transport.depths())
        assert link_threads() == []
        with pytest.raises(ChannelClosed):
            haul.transport.recv(0, silent)


def test_hundreds_of_batches_arrive_whole_under_random_timing(open_set) -> None:
    for seed, preset in enumerate(presets):
        choice = TransportChoice(*presets[preset], depth=1 + seed)
        haul = ship(choice, open_set("3-2"), 300, seed=seed)
        check_books(haul, choice, 300)


def test_received_bytes_are_the_same_through_every_combination(open_set) -> None:
    hauls = [ship(choice, open_set("2-2"), 24).taps for choice in combinations]
    for haul in hauls[1:]:
        assert haul.keys() == hauls[0].keys()
        assert all(torch.equal(haul[batch_id], hauls[0][batch_id]) for batch_id in haul)


@every_combination
def test_what_is_queued_is_bounded(open_set, choice: TransportChoice) -> None:
    """Without a reader, sends return until the queues are full, and no more than one each waits in `put`."""
    devices = open_set("2-2")
    haul = Haul(devices, open_mixed(choice, devices, speeds, silent), ListLog())
    threads = [haul.start(haul.produce, t, list(range(t, 40, 2)), random.Random(t)) for t in range(2)]
    capacity = sum(capacity for _, _, capacity in haul.transport.depths())
    assert capacity == (2 if choice.queue == "shared" else 4)
    puts = [channel._writable for channel in haul.transport._queues.channels]
    wait_until(lambda: sum(len(condition._waiters) for condition in puts) == 2)
    returned = sum(len(sent) for sent in haul.sent.values())
    assert returned == sum(depth for _, depth, _ in haul.transport.depths()) <= capacity
    threads += [haul.start(haul.consume, d, random.Random(d)) for d in range(2)]
    join(threads)
    check_books(haul, choice, 40)


@every_combination
def test_an_abort_at_any_moment_ends_everybody_with_the_first_error(open_set, choice) -> None:
    for seed in range(8):
        abort_at_some_moment(choice, open_set("2-2"), random.Random(seed))


def abort_at_some_moment(choice: TransportChoice, devices: DeviceSet, rng: random.Random) -> None:
    haul = Haul(devices, open_mixed(choice, devices, speeds, silent), ListLog())
    threads = [haul.start(haul.produce, t, itertools.count(t, 2), random.Random(t)) for t in range(2)]
    threads += [haul.start(haul.consume, d, random.Random(d)) for d in range(2)]
    time.sleep(rng.random() * 0.01)
    first = OSError("first")
    haul.transport.abort(first)
    haul.transport.abort(OSError("second"))
    join(threads)
    assert [error is first for error in haul.errors] == [True] * 4, haul.errors
    with pytest.raises(OSError, match="first"):
        haul.transport.recv(0, silent)
    late = make_item(1, devices.targets[0].torch_device)
    with pytest.raises(OSError, match="first"):
        haul.transport.send(late, 0, silent)
    wait_until(lambda: link_threads() == [])
    for _ in devices.targets:
        haul.transport.close()  # clean-up after a failure does not raise it again


@every_combination
def test_one_target_may_end_long_before_the_other(open_set, choice: TransportChoice) -> None:
    devices = open_set("2-1")
    haul = Haul(devices, open_mixed(choice, devices, speeds, silent), ListLog())
    join([haul.start(haul.produce, 0, [], random.Random(0))])
    reader = haul.start(haul.consume, 0, random.Random(0))
    join([haul.start(haul.produce, 1, [3, 1, 4, 15, 9], random.Random(0)), reader])
    assert haul.received == {0: [3, 1, 4, 15, 9]}
    assert not haul.errors


@pytest.mark.parametrize("path", ["pageable", "pinned", "peer"])
@pytest.mark.parametrize("queue", ["shared", "per_drafter"])
def test_least_depth_sends_to_the_drafter_with_the_fewest_tokens(open_set, queue: str, path: str) -> None:
    devices = open_set("1-2")
    transport = open_transport(TransportChoice(queue, path, "least_depth", 8), devices, speeds, silent)
    source = devices.targets[0].torch_device
    items = [make_item(i, source, tokens) for i, tokens in enumerate((100, 30, 30, 30, 30, 5))]
    for item in items:
        transport.send(item, 0, silent)
    assert [item.home for item in items] == [0, 1, 1, 1, 1, 0]  # at the end 100 against 120
    devices.drafters[0].bind_thread()
    first = transport.recv(0, silent)
    assert first is items[0]
    late = make_item(7, source, 1)
    transport.send(late, 0, silent)
    assert late.home == 0  # 105 against 120: taken is not yet done
    transport.done(first)
    later = make_item(8, source, 10)
    transport.send(later, 0, silent)
    assert later.home == 0
    transport.close()


@pytest.mark.parametrize("path", ["pinned", "peer"])
def test_wrong_device_takes_are_counted_exactly(open_set, path: str) -> None:
    devices, log = open_set("1-2"), ListLog()
    choice = TransportChoice("shared", path, "round_robin", 6)
    haul = Haul(devices, open_mixed(choice, devices, speeds, Probe(log, "trainer")), log)
    join([haul.start(haul.produce, 0, list(range(6)), random.Random(0))])
    join([haul.start(haul.consume, 1, random.Random(0))])  # drafter 1 takes all; 0, 2, 4 are homed on 0
    check_books(haul, choice, 6)
    check_events(haul, choice, 6)
    notes = {take["batch"]: take["note"] for take in log.rows(name="take")}
    other = "home" if devices.drafters[0] is devices.drafters[1] else "away"
    assert notes == {0: other, 1: "home", 2: other, 3: "home", 4: other, 5: "home"}


def test_host_memory_is_nobodys_home(open_set) -> None:
    devices, log = open_set("1-2"), ListLog()
    choice = TransportChoice("shared", "pageable", "round_robin", 6)
    haul = Haul(devices, open_mixed(choice, devices, speeds, Probe(log, "trainer")), log)
    join([haul.start(haul.produce, 0, list(range(6)), random.Random(0))])
    join([haul.start(haul.consume, 1, random.Random(0))])
    assert {take["note"] for take in log.rows(name="take")} == {"home"}
    check_events(haul, choice, 6)


@pytest.mark.parametrize("choice", combinations, ids=str)
def test_states_from_inference_mode_can_be_trained_on(open_set, choice: TransportChoice) -> None:
    devices = open_set("1-1")
    transport = open_transport(choice, devices, speeds, silent)
    with torch.inference_mode():
        item = make_item(1, devices.targets[0].torch_device)
        transport.send(item, 0, silent)
    transport.close()
    devices.drafters[0].bind_thread()
    taps = transport.recv(0, silent).taps
    weight = torch.ones(width, 1, device=taps.device, requires_grad=True)
    (taps @ weight).sum().backward()
    assert torch.equal(weight.grad[:, 0].cpu(), payload(1)[0].sum(0))


@pytest.mark.parametrize("choice", overlapped, ids=str)
def test_a_slice_of_a_larger_tensor_arrives_whole(open_set, choice: TransportChoice) -> None:
    devices = open_set("1-1")
    transport = open_transport(choice, devices, speeds, silent)
    wide = torch.arange(12.0 * width * 2).view(12, width * 2)
    taps = wide.to(devices.targets[0].torch_device)[:, width:]
    transport.send(HiddenStates(batch=make_batch(0, 12), taps=taps), 0, silent)
    transport.close()
    devices.drafters[0].bind_thread()
    assert torch.equal(transport.recv(0, silent).taps.cpu(), wide[:, width:])


def test_done_is_for_items_that_were_sent_and_once(open_set) -> None:
    devices = open_set("1-1")
    transport = open_transport(combinations[0], devices, speeds, silent)
    item = make_item(1, devices.targets[0].torch_device)
    with pytest.raises(TypeError, match="not sent"):
        transport.done(item)
    transport.send(item, 0, silent)
    transport.done(item)
    with pytest.raises(RuntimeError, match="already done"):
        transport.done(item)
    transport.close()
