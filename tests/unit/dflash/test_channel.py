"""Channel: order, bounds, counted writers, first error, and what it tells the probe."""

from __future__ import annotations

import random
import threading
import time

import pytest

from dflash.channel import Channel, ChannelClosed
from dflash.contract.events import Probe, event_schema, silent


class ListLog:
    """Keeps event rows as dicts."""

    def __init__(self) -> None:
        self.rows: list[dict] = []

    def append(self, row: tuple) -> None:
        self.rows.append(dict(zip(event_schema.names, row, strict=True)))


def in_thread(work) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def wait_until(condition) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.0005)


def waiters(condition: threading.Condition) -> int:
    return len(condition._waiters)


def test_order_is_kept_and_the_last_close_lets_readers_drain() -> None:
    channel: Channel[int] = Channel("q", 3)
    for _ in range(2):
        channel.add_writer()
    for item in (1, 2, 3):
        channel.put(item, silent)
    channel.close()
    assert channel.get(silent) == 1
    channel.put(4, silent)  # one writer is left
    channel.close()
    assert [channel.get(silent) for _ in range(3)] == [2, 3, 4]
    with pytest.raises(ChannelClosed):
        channel.get(silent)
    with pytest.raises(ChannelClosed):
        channel.put(5, silent)


def test_put_waits_for_room_and_get_for_an_item() -> None:
    channel: Channel[int] = Channel("q", 1)
    channel.add_writer()
    got: list[int] = []
    reader = in_thread(lambda: got.append(channel.get(silent)))
    wait_until(lambda: waiters(channel._readable) == 1)
    channel.put(1, silent)
    reader.join(30)
    assert got == [1]
    channel.put(2, silent)
    writer = in_thread(lambda: channel.put(3, silent))
    wait_until(lambda: waiters(channel._writable) == 1)
    assert channel.depth() == 1
    assert channel.get(silent) == 2
    writer.join(30)
    assert channel.get(silent) == 3


def test_the_last_close_wakes_every_waiting_reader() -> None:
    channel: Channel[int] = Channel("q", 1)
    channel.add_writer()
    ends: list[type] = []

    def read() -> None:
        try:
            channel.get(silent)
        except ChannelClosed as end:
            ends.append(type(end))

    readers = [in_thread(read) for _ in range(4)]
    wait_until(lambda: waiters(channel._readable) == 4)
    channel.close()
    for reader in readers:
        reader.join(30)
    assert ends == [ChannelClosed] * 4


def test_abort_wakes_readers_and_writers_with_the_first_error() -> None:
    full: Channel[int] = Channel("full", 1)
    empty: Channel[int] = Channel("empty", 1)
    full.add_writer()
    empty.add_writer()
    full.put(0, silent)
    errors: list[BaseException] = []

    def catch(call) -> None:
        try:
            call()
        except ValueError as error:
            errors.append(error)

    threads = [in_thread(lambda: catch(lambda: full.put(1, silent))) for _ in range(3)]
    threads += [in_thread(lambda: catch(lambda: empty.get(silent))) for _ in range(3)]
    wait_until(lambda: waiters(full._writable) == 3 and waiters(empty._readable) == 3)
    first = ValueError("first")
    for channel in (full, empty):
        channel.abort(first)
        channel.abort(ValueError("second"))
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert errors == [first] * 6
    for late_call in (lambda: full.put(1, silent), lambda: full.get(silent), full.add_writer):
        with pytest.raises(ValueError, match="first"):
            late_call()
    full.close()  # clean-up after a failure does not raise it again
    assert full.depth() == 1  # what nobody took is counted


def test_a_channel_is_closed_as_often_as_it_has_writers() -> None:
    channel: Channel[int] = Channel("q", 1)
    with pytest.raises(RuntimeError, match="closed more often"):
        channel.close()
    with pytest.raises(ValueError, match="capacity"):
        Channel("q", 0)


def test_every_put_and_get_is_a_span_and_every_change_a_gauge() -> None:
    log = ListLog()
    probe = Probe(log, "target", 1, "logical:1")
    channel: Channel[int] = Channel("q_hs.0", 2)
    channel.add_writer()
    channel.put(1, probe)
    channel.put(2, probe)
    channel.get(probe)
    channel.close()
    channel.get(probe)
    with pytest.raises(ChannelClosed):
        channel.get(probe)
    spans = [row["name"] for row in log.rows if row["kind"] == "span"]
    depths = [row["value"] for row in log.rows if row["name"] == "depth"]
    assert spans == ["put", "put", "get", "get", "get"]
    assert depths == [1, 2, 1, 0]
    assert {row["channel"] for row in log.rows} == {"q_hs.0"}
    assert {(row["stage"], row["index"], row["device"]) for row in log.rows} == {("target", 1, "logical:1")}
    assert all(row["dur_ns"] >= 0 for row in log.rows if row["kind"] == "span")


def test_a_wait_is_as_long_as_the_other_side_took() -> None:
    log = ListLog()
    channel: Channel[int] = Channel("q", 1)
    channel.add_writer()
    reader = in_thread(lambda: channel.get(Probe(log, "drafter")))
    wait_until(lambda: waiters(channel._readable) == 1)
    waiting_ns = time.monotonic_ns()
    time.sleep(0.02)
    put_ns = time.monotonic_ns()
    channel.put(1, silent)
    reader.join(30)
    (span,) = [row for row in log.rows if row["name"] == "get"]
    assert span["t_ns"] <= waiting_ns
    assert span["t_ns"] + span["dur_ns"] >= put_ns


def test_who_is_woken_looks_again_before_it_acts() -> None:
    """Between the waking and the lock somebody else may take the room or the item."""
    channel: Channel[int] = Channel("q", 1)
    channel.add_writer()
    taken: list[int] = []
    readers = [in_thread(lambda: taken.append(channel.get(silent))) for _ in range(2)]
    wait_until(lambda: waiters(channel._readable) == 2)
    with channel._lock:
        channel._readable.notify_all()
    wait_until(lambda: waiters(channel._readable) == 2)
    channel.put(1, silent)
    channel.put(2, silent)
    for reader in readers:
        reader.join(30)
    assert sorted(taken) == [1, 2]
    channel.put(3, silent)
    writers = [in_thread(lambda: channel.put(4, silent)) for _ in range(2)]
    wait_until(lambda: waiters(channel._writable) == 2)
    with channel._lock:
        channel._writable.notify_all()
    wait_until(lambda: waiters(channel._writable) == 2)
    assert channel.depth() == 1
    assert [channel.get(silent) for _ in range(3)] == [3, 4, 4]
    for writer in writers:
        writer.join(30)


def cycle(seed: int) -> None:
    """Some writers and readers, ended by the last close or by an abort at a random moment."""
    rng = random.Random(seed)
    channel: Channel[int] = Channel("q", rng.randint(1, 3))
    writers, readers, count = rng.randint(1, 4), rng.randint(1, 4), rng.randint(0, 20)
    sent: list[int] = []
    taken: list[list[int]] = [[] for _ in range(readers)]
    stop, raised = RuntimeError("stopped"), []
    for _ in range(writers):
        channel.add_writer()

    def write(number: int) -> None:
        try:
            for item in range(number * 1000, number * 1000 + count):
                channel.put(item, silent)
                sent.append(item)
        except RuntimeError as error:
            raised.append(error)
        finally:
            channel.close()

    def read(into: list[int]) -> None:
        try:
            while True:
                into.append(channel.get(silent))
        except ChannelClosed:
            pass
        except RuntimeError as error:
            raised.append(error)

    threads = [in_thread(lambda n=n: write(n)) for n in range(writers)]
    threads += [in_thread(lambda t=t: read(t)) for t in taken]
    aborted = rng.random() < 0.5
    if aborted:
        time.sleep(rng.random() * 0.001)
        channel.abort(stop)
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive(), f"seed {seed} hangs"
    assert all(error is stop for error in raised)
    together = sorted(item for items in taken for item in items)
    assert len(together) + channel.depth() == len(sent), f"seed {seed}: lost or made up"
    assert len(set(together)) == len(together)
    if not aborted:
        assert together == sorted(sent)
        assert len(sent) == writers * count
    for items in taken:
        for number in range(writers):
            own = [item for item in items if item // 1000 == number]
            assert own == sorted(own), "order of one writer is kept"


def test_500_starts_and_stops_lose_nothing_and_hang_nowhere() -> None:
    """C111."""
    for seed in range(500):
        cycle(seed)


@pytest.mark.parametrize("fill", [0, 2])
def test_a_consumer_that_dies_ends_its_producers(fill: int) -> None:
    """C112."""
    channel: Channel[int] = Channel("q", 2)
    channel.add_writer()
    ends: list[BaseException] = []

    def produce() -> None:
        try:
            while True:
                channel.put(1, silent)
        except OSError as error:
            ends.append(error)

    def consume() -> None:
        if fill == 0:
            channel.get(silent)
        channel.abort(OSError("the consumer died"))

    for _ in range(fill):
        channel.put(0, silent)
    threads = [in_thread(produce), in_thread(produce)]
    if fill:
        wait_until(lambda: waiters(channel._writable) == 2)
    threads.append(in_thread(consume))
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert [str(end) for end in ends] == ["the consumer died"] * 2
