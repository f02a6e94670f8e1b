"""Races that only real streams can have.

Delays are put on the side streams, so that a missing wait, record or ring rule reads or writes memory at the
wrong time. Works on one GPU (roles share it) and on two.

The contract suite (`tests/contract/test_transports.py -m gpu`) runs on GPUs too.
"""

from __future__ import annotations

import gc
import threading
import time

import pytest
import torch

import dflash.transport.cuda_carrier
from dflash.contract.events import silent
from dflash.contract.sections import DevicesConfig, TransportChoice
from dflash.transport import open_transport
from dflash.transport.paths import PinnedPath
from tests.stream_rig import (
    ListLog,
    Rig,
    full,
    item_bytes,
    item_of,
    millisecond,
    open_apart,
    overlapped,
    poison,
    synchronize,
)

pytestmark = pytest.mark.gpu


@overlapped
def test_a_source_freed_while_the_copy_runs_arrives_whole(path: str) -> None:
    """C041, and with two GPUs C042."""
    rig = Rig(path)
    for tag in range(1, 501):
        rig.delay_all(millisecond // 4)
        rig.send(tag)
        with rig.on_target() as device:
            poison(device)
        rig.check(tag)
    assert rig.mismatches() == 0


@overlapped
def test_a_copy_starts_when_the_states_have_been_computed(path: str) -> None:
    rig = Rig(path)
    for tag in range(1, 51):
        with rig.on_target() as device:
            taps = full(-tag, device)
            torch.cuda._sleep(millisecond)  # the forward
            taps.fill_(tag)
            rig.transport.send(item_of(tag, taps), 0, silent)
            del taps
        rig.check(tag)
    assert rig.mismatches() == 0


@overlapped
def test_a_drafter_reads_only_what_has_arrived(path: str) -> None:
    """C039, and with two GPUs C042."""
    rig = Rig(path)
    for tag in range(1, 101):
        rig.delay(rig.edges()[tag % len(rig.edges())], millisecond)
        rig.send(tag)
        rig.check(tag)
    assert rig.mismatches() == 0


@overlapped
def test_received_memory_is_not_written_while_the_drafter_still_reads(path: str) -> None:
    """C041 at the other end."""
    rig = Rig(path, depth=4)
    rig.send(1)
    for tag in range(1, 101):
        with rig.on_drafter():
            torch.cuda._sleep(millisecond)  # the drafter runs behind its thread
        rig.check(tag)  # drops the tensor before it has been read
        rig.send(tag + 1)  # wants memory of the same size at the drafter
    rig.check(101)
    assert rig.mismatches() == 0


@pytest.mark.parametrize("buffers", [1, 2])
def test_a_slab_is_not_overwritten_during_its_upload(buffers: int) -> None:
    """C044: right with one buffer too, only slower."""
    rig = Rig("pinned", depth=32)
    rig.transport._path = PinnedPath(rig.carrier, rig.devices, buffers=buffers)
    upload = rig.edges()[1]
    for tag in range(1, 25):
        rig.delay(upload, 2 * millisecond)
        rig.send(tag)
    for tag in range(1, 25):
        rig.check(tag)
    assert rig.mismatches() == 0


@overlapped
def test_an_item_homed_elsewhere_is_moved_after_it_has_arrived(path: str) -> None:
    rig = Rig(path, devices=open_apart("1-2"), queue="shared", depth=4)
    for tag in range(1, 41):
        home = (tag + 1) % 2  # round robin
        rig.delay_all(millisecond, home)
        rig.send(tag)
        rig.check(tag, drafter=1 - home)
    assert rig.mismatches() == 0


@overlapped
def test_a_slow_copy_holds_up_neither_stages_stream(path: str) -> None:
    """A peer copy on the stages' own streams would block both. Streams may share a hardware queue by chance,
    so one of several attempts must show that they are independent."""
    for _ in range(8):
        rig = Rig(path)
        for tag in (1, 2):  # from here on slabs, streams and memory exist: allocating them may synchronise
            rig.send(tag)
            rig.check(tag)
            synchronize(rig.devices)
        rig.delay_all(500 * millisecond)
        rig.send(3)
        with rig.on_target():
            target_moment = rig.devices.targets[0].record()
        with rig.on_drafter():
            drafter_moment = rig.devices.drafters[0].record()
        target_moment.wait()
        drafter_moment.wait()
        (pending,) = [item.ready for item in rig.transport._queues.of(0)._items]
        independent = not pending.done()
        rig.check(3)
        assert rig.mismatches() == 0
        if independent:
            return
    pytest.fail("the stages' streams waited for the copy every time")


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_a_copy_waits_for_nothing_that_its_thread_has_on_the_destination() -> None:
    """A peer copy is ordered with the current streams of both ends, so both have to be its own."""
    for _ in range(8):
        rig = Rig("peer")
        for tag in (1, 2):  # from here on streams and memory exist
            rig.send(tag)
            rig.check(tag)
            synchronize(rig.devices)
        drafter = rig.devices.drafters[0]
        with rig.on_target(), drafter.active():
            torch.cuda._sleep(500 * millisecond)
            asleep = drafter.record()
        rig.send(3)
        (pending,) = [item.ready for item in rig.transport._queues.of(0)._items]
        pending.wait()
        independent = not asleep.done()
        rig.check(3)
        assert rig.mismatches() == 0
        if independent:
            return
    pytest.fail("the copy waited for the thread's other work on the destination every time")


def test_slabs_are_pinned_exactly_as_large_as_needed_and_given_back(monkeypatch) -> None:
    """C045."""
    unpinned: list[int] = []
    unpin = dflash.transport.cuda_carrier._unpin
    monkeypatch.setattr(
        dflash.transport.cuda_carrier, "_unpin", lambda address: (unpinned.append(address), unpin(address))
    )
    rig = Rig("pinned")
    rig.send(1)
    slab = rig.transport._path._rings[0][-1].slab
    assert slab.nbytes == item_bytes
    assert slab.is_pinned()
    address = slab.data_ptr()
    rig.check(1)
    assert rig.mismatches() == 0
    del rig, slab
    gc.collect()
    assert unpinned == [address]


def test_slabs_smaller_than_a_page_do_not_share_one() -> None:
    carrier = dflash.transport.cuda_carrier.CudaCarrier(silent)
    slabs = [carrier.new_slab(100) for _ in range(200)]
    assert all(slab.is_pinned() for slab in slabs)


@overlapped
def test_copies_are_timed_by_the_device_on_the_host_clock(path: str) -> None:
    log = ListLog()
    rig = Rig(path, log=log)
    began_ns = time.monotonic_ns()
    for tag in range(1, 11):
        rig.send(tag)
        rig.check(tag)
    assert rig.mismatches() == 0
    ended_ns = time.monotonic_ns()
    copies = [row for row in log.rows if row["name"] == "copy"]
    assert len(copies) == 10 * len(rig.edges())
    for row in copies:
        assert (row["clock"], row["stage"], row["path"], row["bytes"]) == ("gpu", "link", path, item_bytes)
        assert row["dur_ns"] > 0
        # Anchors are good to 0.2 ms; leave room.
        assert began_ns - 2_000_000 <= row["t_ns"]
        assert row["t_ns"] + row["dur_ns"] <= ended_ns + 2_000_000


@pytest.mark.parametrize(("path", "count"), [("peer", 200), ("pinned", 100), ("pageable", 30)])
def test_checksums_hold_under_load(path: str, count: int) -> None:
    """Two threads, 64 MB items of random bits, matrix products beside the copies on both devices."""
    devices = open_apart("1-1")
    choice = TransportChoice("per_drafter", path, "round_robin", 2)
    transport = open_transport(choice, devices, DevicesConfig(), silent)
    sums: dict[str, dict[int, torch.Tensor]] = {"sent": {}, "received": {}}
    errors: list[BaseException] = []

    def target() -> None:
        device = devices.targets[0].torch_device
        load = torch.randn(2048, 2048, device=device, dtype=torch.bfloat16)
        for batch_id in range(count):
            load = torch.tanh(load @ load)
            taps = torch.randint(-(2**31), 2**31 - 1, (1 << 14, 1 << 10), device=device, dtype=torch.int32)
            sums["sent"][batch_id] = taps.sum(dtype=torch.int64)
            item = item_of(batch_id, taps)
            del taps
            transport.send(item, 0, silent)
        transport.close()

    def drafter() -> None:
        device = devices.drafters[0].torch_device
        load = torch.randn(2048, 2048, device=device, dtype=torch.bfloat16)
        for _ in range(count):
            item = transport.recv(0, silent)
            load = torch.tanh(load @ load)
            sums["received"][item.batch.id] = item.taps.sum(dtype=torch.int64)
            devices.drafters[0].record().wait()
            transport.done(item)

    def run(device, work) -> None:
        try:
            device.bind_thread()
            work()
        except Exception as error:  # noqa: BLE001 - as a stage does
            errors.append(error)
            transport.abort(error)

    threads = [
        threading.Thread(target=run, args=(devices.targets[0], target), daemon=True),
        threading.Thread(target=run, args=(devices.drafters[0], drafter), daemon=True),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive(), "hangs"
    assert errors == []
    assert list(sums["received"]) == list(range(count))
    synchronize(devices)
    sent, received = ({k: int(v) for k, v in sums[side].items()} for side in ("sent", "received"))
    assert sent == received


def test_threads_get_their_device_and_a_stream_of_their_own() -> None:
    """C114."""
    devices = open_apart("2-2")
    seen: list[tuple[int, int, bool]] = []

    def look(device) -> None:
        device.bind_thread()
        stream = torch.cuda.current_stream()
        default = stream == torch.cuda.default_stream()
        seen.append((torch.cuda.current_device(), stream.cuda_stream, default))

    stages = (*devices.targets, *devices.drafters)
    for device in stages:
        thread = threading.Thread(target=look, args=(device,))
        thread.start()
        thread.join(60)
    assert [index for index, _, _ in seen] == [device.index for device in stages]
    assert not any(default for _, _, default in seen)
    assert len({stream for _, stream, _ in seen}) == len(stages)


def test_waiting_for_a_moment_leaves_other_threads_running() -> None:
    device = open_apart("1-1").targets[0]
    stream = torch.cuda.Stream(device.torch_device)
    counted, stop = [0], threading.Event()

    def count() -> None:
        while not stop.is_set():
            counted[0] += 1

    with torch.cuda.stream(stream):
        torch.cuda._sleep(500 * millisecond)
        moment = device.record()
    thread = threading.Thread(target=count)
    thread.start()
    before = counted[0]
    moment.wait()
    after = counted[0]
    stop.set()
    thread.join(60)
    assert moment.done()
    assert after - before > 1000


def test_a_timing_lies_where_the_work_was() -> None:
    device = open_apart("1-1").targets[0]
    stream = torch.cuda.Stream(device.torch_device)
    with torch.cuda.stream(stream):
        torch.cuda._sleep(millisecond)
        device.record().wait()
        began_ns = time.monotonic_ns()
        timing = device.start_timing()
        torch.cuda._sleep(20 * millisecond)
        timing.stop()
        assert not timing.done()
        start_ns, end_ns = timing.ends_ns()
        ended_ns = time.monotonic_ns()
    assert timing.done()
    assert began_ns - 2_000_000 <= start_ns < end_ns <= ended_ns + 2_000_000
    assert end_ns - start_ns > 5_000_000


def test_gpus_are_described_as_nvml_names_them() -> None:
    described = open_apart("1-1").describe()
    for entry in described:
        assert entry["uuid"].startswith("GPU-")
        assert entry["memory_bytes"] > 1 << 30
        assert entry["model"]
