import random
import sys
import threading
import time
from dataclasses import fields

import pytest
import torch

from dflash.batch import Batch, Layout, WindowInfo
from dflash.contract.events import Probe, silent
from dflash.window import WindowTurns


def make_batch(number: int, step: int, batches: int) -> Batch:
    window = WindowInfo(**{**{f.name: 1 for f in fields(WindowInfo)}, "step": step, "batches": batches})
    nothing = torch.zeros(0, dtype=torch.int64)
    tensors = ("input_ids", "positions", "document_ids", "anchors", "labels", "weights")
    return Batch(
        id=number,
        window=window,
        documents=(),
        lengths=(),
        layout=Layout(rows=0, width=0, slots=nothing, packed=True),
        **dict.fromkeys(tensors, nothing),
    )


def make_run(sizes: list[int], first_step: int = 0) -> list[Batch]:
    steps = [(step, size) for step, size in enumerate(sizes, start=first_step) for _ in range(size)]
    return [make_batch(number, step, size) for number, (step, size) in enumerate(steps)]


def send_all(run: list[Batch], targets: int, delays: random.Random, first_step: int = 0) -> list[Batch]:
    """As target threads do: take in order, work, wait for the turn, send. Returns the order sent."""
    turns, lock = WindowTurns(first_step), threading.Lock()
    source, sent = iter(run), []
    pauses = {batch.id: delays.random() * 3e-4 for batch in run}

    def target() -> None:
        while True:
            with lock:
                batch = next(source, None)
            if batch is None:
                return
            time.sleep(pauses[batch.id])
            turns.wait(batch, silent)
            sent.append(batch)
            turns.sent(batch)

    threads = [threading.Thread(target=target, daemon=True) for _ in range(targets)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive(), "deadlock"
    return sent


@pytest.fixture
def frequent_switches():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("frequent_switches")
def test_windows_are_sent_one_after_another_in_any_interleaving():
    delays = random.Random(0)
    for _ in range(300):
        first = delays.randrange(3)
        run = make_run([delays.randint(1, 4) for _ in range(delays.randint(2, 5))], first)
        sent = send_all(run, delays.randint(1, 4), delays, first)
        assert sorted(batch.id for batch in sent) == [batch.id for batch in run]
        steps = [batch.window.step for batch in sent]
        assert steps == sorted(steps)


def in_thread(
    turns: WindowTurns, batch: Batch, probe: Probe = silent
) -> tuple[threading.Thread, list[object]]:
    outcome: list[object] = []

    def wait() -> None:
        try:
            turns.wait(batch, probe)
            outcome.append("turn")
        except RuntimeError as error:
            outcome.append(error)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread, outcome


def test_a_later_window_waits_for_the_last_batch_of_the_earlier():
    first, second, later = make_run([2, 1])
    turns = WindowTurns()
    thread, outcome = in_thread(turns, later)
    for batch in (first, second):
        thread.join(0.05)
        assert not outcome
        turns.wait(batch, silent)
        turns.sent(batch)
    thread.join(30)
    assert outcome == ["turn"]


def test_an_abort_wakes_waiters_and_meets_all_later_ones():
    _, later = make_run([1, 1])
    turns = WindowTurns()
    thread, outcome = in_thread(turns, later)
    cause = RuntimeError("target 1 failed")
    turns.abort(cause)
    turns.abort(RuntimeError("an echo"))
    thread.join(30)
    assert outcome == [cause]
    with pytest.raises(RuntimeError, match="target 1 failed"):
        turns.wait(make_batch(0, 0, 1), silent)


class Rows:
    """Stands for an event log."""

    def __init__(self) -> None:
        self.rows: list[tuple] = []

    def append(self, row: tuple) -> None:
        self.rows.append(row)


def test_a_wait_is_a_span():
    rows = Rows()
    probe = Probe(rows, "target", 1)  # type: ignore[arg-type]
    turns = WindowTurns(5)
    turns.sent(make_batch(7, 5, 1))
    assert rows.rows == []
    turns.wait(make_batch(8, 6, 1), probe)
    ((_, dur_ns, *what),) = rows.rows
    assert dur_ns >= 0
    assert what[:4] == ["span", "window_turn", "target", 1]
    assert 8 in what
    assert 6 in what
