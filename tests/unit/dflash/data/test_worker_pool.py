"""Worker processes: the same documents in the same order, and an end with a name if one is lost or stuck."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from itertools import count, cycle, islice
from pathlib import Path
from typing import Any

import psutil
import pytest

from dflash.contract.config import TrainConfig, load_config
from dflash.contract.errors import DataError, DFlashError
from dflash.data import worker_pool
from dflash.data.chunks import rows_in_chunk
from dflash.data.conversations import Conversation
from dflash.data.preparation import in_process
from dflash.data.sources import RawRow, read_raw
from dflash.data.tokenizer import ChatTokenizer, open_embedded_tokenizer
from dflash.data.worker_pool import WorkerPool, choose_workers

data = Path(__file__).parents[3] / "data"


@pytest.fixture(scope="module")
def tokenizer() -> ChatTokenizer:
    return open_embedded_tokenizer()


def configure(**knobs: object) -> TrainConfig:
    return load_config(None).replacing({"data.max_length": 256, "data.path": "rows", **knobs})


def many_rows() -> Iterator[RawRow]:
    """Rows without end, of good ones and bad ones, each on a line of its own."""
    rows = [*read_raw(data / "talks.jsonl"), *read_raw(data / "cases/data/c001_roles_not_alternating.jsonl")]
    for number, row in zip(count(1), cycle(rows), strict=False):
        yield RawRow(file="rows", line=number, payload=row.payload)


def hold_up(pool: WorkerPool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker with the first chunk stands still until another has made two later ones."""
    give, held = pool._give, list[int]()

    def give_and_hold(worker: Any, job: Any) -> None:
        if job.number == 0:
            held.append(worker.process.pid)
            os.kill(held[0], signal.SIGSTOP)
        elif job.number == 3:  # the other has made 1 and 2
            os.kill(held[0], signal.SIGCONT)
        give(worker, job)

    monkeypatch.setattr(pool, "_give", give_and_hold)


def stand_still(pool: WorkerPool, index: int, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """That worker stands still as soon as it gets a job, and it seems to have been so for `seconds`."""
    give = pool._give

    def give_and_stop(worker: Any, job: Any) -> None:
        give(worker, job)
        if worker.index == index:
            os.kill(worker.process.pid, signal.SIGSTOP)
            wait_for(lambda: psutil.Process(worker.process.pid).status() == psutil.STATUS_STOPPED)
            worker.seen = (pool._places[index], time.monotonic() - seconds)

    monkeypatch.setattr(pool, "_give", give_and_stop)


def wait_for(look):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if found := look():
            return found
        time.sleep(0.001)
    raise TimeoutError


def test_workers_make_what_this_process_makes_in_the_same_order(
    tokenizer: ChatTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, rows = configure(), list(islice(many_rows(), 700))
    rows[0] = RawRow(file="rows", line=1, payload=rows[0].payload.replace(b"the", b"the " * 2000))
    here = list(in_process(iter(rows), config, tokenizer, print))
    with WorkerPool(2, config, tokenizer, print) as pool:
        workers = {worker.process.pid for worker in pool._workers}
        hold_up(pool, monkeypatch)
        there = list(pool.chunks(iter(rows)))
    assert len(here) == len(there) == -(-700 // rows_in_chunk)
    assert sum(chunk.rows for chunk in there) == 700
    for one, other in zip(here, there, strict=True):
        for name in ("ids", "loss_mask", "lengths", "candidates", "texts", "lines", "row_ids"):
            assert getattr(one, name).tolist() == getattr(other, name).tolist()
            assert getattr(one, name).dtype == getattr(other, name).dtype
        for name in ("rows", "files", "refused", "notes", "cut", "too_long", "shortest_prompt"):
            assert getattr(one, name) == getattr(other, name)
    lines = [line for chunk in there for line in chunk.lines.tolist()]
    refused = [row.line for chunk in there for row in chunk.refused]
    assert lines == sorted(lines)
    assert refused == sorted(refused)
    assert sorted(lines + refused) == list(range(1, 701))
    assert not workers & {child.pid for child in psutil.Process().children()}


def test_a_killed_worker_ends_the_run_and_the_rows_in_its_hand_are_named(tokenizer: ChatTokenizer) -> None:
    """Case C030: eight workers on two cores."""
    with WorkerPool(8, configure(), tokenizer, print) as pool:
        chunks = pool.chunks(many_rows())
        victim = pool._workers[3]
        while victim.job is None:
            next(chunks)
        pid, first = victim.process.pid, victim.job.rows[0].line
        victim.process.kill()
        with pytest.raises(DFlashError, match="has ended") as caught:
            deque(chunks, maxlen=0)
    assert caught.value.exit_code == 1
    assert caught.value.where == f"preparation worker 3 (pid {pid})"
    # It may have handed in its chunk before it died, and got the next one.
    assert caught.value.found.startswith("killed by SIGKILL; rows in hand: rows, line ")
    assert int(caught.value.found.split()[8]) >= first
    assert all(not worker.process.is_alive() for worker in pool._workers)


def test_a_worker_that_stands_still_is_named_with_its_row(
    tokenizer: ChatTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case C030: whatever a worker is at, and for whatever reason it does not get on."""
    with WorkerPool(2, configure(**{"data.row_seconds": 60.0}), tokenizer, print) as pool:
        stand_still(pool, 1, 61.0, monkeypatch)
        with pytest.raises(DataError, match="takes too long") as caught:
            deque(pool.chunks(many_rows()), maxlen=0)
        in_hand = [row.line for row in pool._workers[1].job.rows]
    assert caught.value.found.startswith("preparation worker 1 (pid ")
    assert int(caught.value.where.removeprefix("rows, line ")) in in_hand
    assert all(not worker.process.is_alive() for worker in pool._workers)


def test_a_worker_with_another_tokenizer_makes_nothing(tokenizer: ChatTokenizer) -> None:
    known_by = (tokenizer.content_sha256, tokenizer.template_sha256)
    assert worker_pool._open_maker(configure(), known_by).tokenizer.name == tokenizer.name
    with pytest.raises(DFlashError, match="another tokenizer"):
        worker_pool._open_maker(configure(), (tokenizer.content_sha256, "another"))


def test_what_a_worker_stumbles_over_is_told_with_its_row(tokenizer) -> None:
    broken = [
        *islice(many_rows(), 4),
        Conversation(file="rows", line=5, id=None, messages=({"role": "user"},)),
    ]
    with (
        pytest.raises(DFlashError, match="worker process failed") as caught,
        WorkerPool(1, configure(), tokenizer, print) as pool,
    ):
        list(pool.chunks(iter(broken)))
    assert caught.value.where.endswith(", at rows, line 5")
    assert "KeyError" in caught.value.found


# Says whom it gives a job: a worker that got one has opened its tokenizer, and will end with its parent.
preparing = """
import sys
from dflash.contract.config import load_config
from dflash.data.loading import load_documents
from dflash.data.tokenizer import open_tokenizer
from dflash.data.worker_pool import WorkerPool
give = WorkerPool._give
def say_and_give(self, worker, job):
    print(f"job for pid {worker.process.pid};", file=sys.stderr, flush=True)
    give(self, worker, job)
if __name__ == "__main__":
    WorkerPool._give = say_and_give
    config = load_config(None, (f"data.path={sys.argv[1]}", "data.workers=2", "data.cache=off"))
    load_documents(config, open_tokenizer(config.target))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nobody_outlives_a_process_that_is_stopped(tmp_path: Path, repository: Path, number: int) -> None:
    path, script, said = tmp_path / "rows.jsonl", tmp_path / "preparing.py", tmp_path / "said.txt"
    path.write_bytes((data / "talks.jsonl").read_bytes() * 600)
    script.write_text(preparing)
    environment = {**os.environ, "PYTHONPATH": str(repository)}
    command = [sys.executable, str(script), str(path)]
    found: list[psutil.Process] = []
    with said.open("w") as file:
        process = subprocess.Popen(command, env=environment, stderr=file, cwd=tmp_path)
    try:
        wait_for(lambda: len(set(re.findall(r"for pid (\d+);", said.read_text()))) == 2)
        found = psutil.Process(process.pid).children()
        workers = [child for child in found if "spawn_main" in " ".join(child.cmdline())]
        assert len(workers) == 2
        workers[0].suspend()  # as one that is in the midst of a row and looks at nothing else
        process.send_signal(number)
        assert process.wait(30) == -number
        assert psutil.wait_procs(found, timeout=30)[1] == []
    finally:
        for left in [process, *found]:
            with suppress(psutil.NoSuchProcess):
                left.kill()
        process.wait()


@pytest.mark.parametrize(
    ("wanted", "size", "cores", "workers"),
    [
        (0, 10**12, 8, 0),
        (3, 1, 8, 3),
        (-1, 10**6, 8, 0),
        (-1, 10**9, 8, 8),
        (-1, 10**9, 1, 0),
        (-1, 10**9, 99, 16),
    ],
)
def test_workers_are_as_many_as_pay(monkeypatch, wanted: int, size: int, cores: int, workers: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    assert choose_workers(wanted, size) == workers
