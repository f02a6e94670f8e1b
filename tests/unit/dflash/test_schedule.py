"""Schedules: what lockstep lets through, when, and that it neither hangs nor lets phases overlap."""

from __future__ import annotations

import random
import threading
import time
from types import SimpleNamespace

import pytest

from dflash.contract.events import Probe, event_schema, silent
from dflash.schedule import Lockstep, Overlapped, open_schedule


def in_thread(work, *arguments: object) -> threading.Thread:
    thread = threading.Thread(target=work, args=arguments, daemon=True)
    thread.start()
    return thread


def await_waiter(schedule: Lockstep) -> None:
    """Return once a thread waits there: one that was started may not have come so far."""
    deadline = time.monotonic() + 30
    while not schedule._changed._waiters:
        assert time.monotonic() < deadline, "nobody came to wait"
        time.sleep(0.0005)


def blocked(thread: threading.Thread) -> bool:
    thread.join(0.01)
    return thread.is_alive()


def test_overlapped_holds_nobody_up() -> None:
    schedule = open_schedule("overlapped", 3)
    assert isinstance(schedule, Overlapped)
    schedule.await_step(silent)
    schedule.await_forward(silent)
    schedule.forwarded(silent)


def test_a_round_is_all_forwards_then_all_steps() -> None:
    schedule = open_schedule("lockstep", 2)
    schedule.await_forward(silent)
    drafter = in_thread(schedule.await_step, silent)
    first = in_thread(schedule.forwarded, silent)
    assert blocked(drafter)
    assert blocked(first)
    schedule.forwarded(silent)  # the last one opens the phase
    first.join(30)
    drafter.join(30)
    again = in_thread(schedule.await_forward, silent)
    schedule.stepped()
    assert blocked(again)
    schedule.stepped()
    again.join(30)
    assert not again.is_alive()


def test_a_target_without_data_is_not_waited_for() -> None:
    schedule = Lockstep(2)
    first = in_thread(schedule.forwarded, silent)
    assert blocked(first)
    schedule.leave()
    first.join(30)
    assert not first.is_alive()
    schedule.stepped()
    drafter = in_thread(schedule.await_step, silent)
    assert blocked(drafter)
    schedule.leave()  # nothing is left: drafters go and find their queues drained
    drafter.join(30)
    assert not drafter.is_alive()


def test_waiting_is_a_span_and_passing_is_none() -> None:
    rows: list[tuple] = []
    probe = Probe(SimpleNamespace(append=rows.append), "drafter")
    schedule = Lockstep(1)
    schedule.await_forward(probe)
    assert rows == []
    drafter = in_thread(schedule.await_step, probe)
    await_waiter(schedule)
    schedule.forwarded(silent)
    drafter.join(30)
    assert [row[event_schema.names.index("name")] for row in rows] == ["barrier"]


def test_an_abort_wakes_everybody_with_the_first_error() -> None:
    schedule, errors = Lockstep(2), []

    def wait(what) -> None:
        try:
            what(silent)
        except OSError as error:
            errors.append(str(error))

    waiting = [in_thread(wait, schedule.await_step), in_thread(wait, schedule.forwarded)]
    assert all(map(blocked, waiting))
    schedule.abort(OSError("first"))
    schedule.abort(OSError("second"))
    for thread in waiting:
        thread.join(30)
    assert errors == ["first", "first"]
    with pytest.raises(OSError, match="first"):
        schedule.await_forward(silent)


@pytest.mark.parametrize("seed", range(40))
def test_phases_never_overlap_whatever_the_timing(seed: int) -> None:
    rng = random.Random(seed)
    targets, drafters = rng.randint(1, 3), rng.randint(1, 3)
    counts = [rng.randint(0, 12) for _ in range(targets)]
    schedule, lock = Lockstep(targets), threading.Lock()
    queue: list[int] = []
    busy = {"forward": 0, "step": 0}
    faults: list[str] = []
    trained = []
    ended = threading.Event()

    def work(kind: str, other: str) -> None:
        with lock:
            busy[kind] += 1
            if busy[other]:
                faults.append(kind)
        time.sleep(rng.random() * 2e-4)
        with lock:
            busy[kind] -= 1

    def target(count: int) -> None:
        for number in range(count):
            schedule.await_forward(silent)
            work("forward", "step")
            schedule.forwarded(silent)
            with lock:
                queue.append(number)
        schedule.leave()

    def drafter() -> None:
        while not ended.is_set():
            schedule.await_step(silent)
            with lock:
                item = queue.pop(0) if queue else None
            if item is None:
                time.sleep(1e-4)
                continue
            work("step", "forward")
            trained.append(item)
            schedule.stepped()

    senders = [in_thread(target, count) for count in counts]
    takers = [in_thread(drafter) for _ in range(drafters)]
    for thread in senders:
        thread.join(30)
        assert not thread.is_alive(), "hangs"
    while len(trained) < sum(counts):
        time.sleep(1e-3)
    ended.set()
    for thread in takers:
        thread.join(30)
        assert not thread.is_alive(), "hangs"
    assert faults == []
