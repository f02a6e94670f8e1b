"""Worker processes that make chunks of rows, given in the order of the rows.

Workers are spawned, since this process has threads and torch. Each has a pipe of its own and a thread here
that tends it: one that is killed, at whatever moment, holds no lock that others need, and its end is seen at
once. A worker writes down which row it is at, so that a row that takes too long has a name. When anything
fails, and when this process is told to stop, all workers are killed; when it is killed, the kernel does that.
Knows nothing of what rows become.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import queue
import signal
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, Final

from dflash.contract.config import TrainConfig
from dflash.contract.errors import DFlashError
from dflash.data.chunks import Chunk, ChunkMaker, Row, rows_in_chunk
from dflash.data.preparation import Progress, Tell, cut_rows, look_seconds, too_slow
from dflash.data.tokenizer import ChatTokenizer, open_tokenizer

most_workers: Final = 16  # as many as one process can feed
worth_workers_bytes: Final = 16_000_000  # below, a worker takes longer to start than to do its share
chunks_ahead: Final = 4  # for each worker: read and not yet given on
start_seconds: Final = 120.0  # for a worker to import and open its tokenizer
end_seconds: Final = 5.0  # for a killed worker to be gone
pr_set_pdeathsig: Final = 1  # linux/prctl.h


def choose_workers(wanted: int, data_bytes: int) -> int:
    """How many worker processes: `wanted`, or for -1 by the size of the data and the cores there are."""
    if wanted >= 0:
        return wanted
    cores = len(os.sched_getaffinity(0))
    return min(cores, most_workers) if cores > 1 and data_bytes >= worth_workers_bytes else 0


@dataclass(frozen=True, slots=True)
class _Job:
    number: int
    rows: list[Row]


@dataclass(slots=True)
class _Worker:
    """One process, its pipe, and what it has in hand."""

    index: int
    process: Any  # of a spawn context
    pipe: Connection
    jobs: queue.SimpleQueue[_Job | None] = field(default_factory=queue.SimpleQueue)
    job: _Job | None = None
    ready: bool = False
    seen: tuple[int, float] = (-1, 0.0)  # the place it was last seen at, and since when

    @property
    def name(self) -> str:
        return f"preparation worker {self.index} (pid {self.process.pid})"

    def rows_in_hand(self) -> str:
        """For people."""
        if self.job is None:
            return "none"
        first, last = self.job.rows[0], self.job.rows[-1]
        end = f"{last.file}, line {last.line}" if last.file != first.file else f"{last.line}"
        return f"{first.file}, line {first.line} to {end}"


class WorkerPool:
    """Worker processes, all gone when the `with` block ends."""

    def __init__(self, count: int, config: TrainConfig, tokenizer: ChatTokenizer, tell: Tell) -> None:
        """`tokenizer`: what workers open must be equal to it."""
        self._config, self._tell = config, tell
        known_by = (tokenizer.content_sha256, tokenizer.template_sha256)
        context = multiprocessing.get_context("spawn")
        self._places = context.RawArray("q", [-1] * count)  # job × rows_in_chunk + row; one writer each
        self._answers: queue.SimpleQueue[tuple[_Worker, tuple[str, Any]]] = queue.SimpleQueue()
        self._workers: list[_Worker] = []
        try:
            for index in range(count):
                ours, theirs = context.Pipe()
                process = context.Process(
                    target=_work,
                    args=(theirs, index, self._places, config, known_by, os.getpid()),
                    name=f"dflash-prepare-{index}",
                    daemon=True,
                )
                process.start()
                theirs.close()  # so that the end of the process is the end of the pipe
                self._workers.append(_Worker(index, process, ours, seen=(-1, time.monotonic())))
            for worker in self._workers:
                threading.Thread(target=self._tend, args=(worker,), daemon=True).start()
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.jobs.put(None)
            worker.process.kill()
        for worker in self._workers:
            worker.process.join(end_seconds)

    def chunks(self, rows: Iterator[Row]) -> Iterator[Chunk]:
        """All chunks in the order of `rows`. Raises DataError and DFlashError."""
        jobs = (_Job(number, some) for number, some in enumerate(cut_rows(rows)))
        progress, done, given = Progress(self._tell), dict[int, Chunk](), 0
        more = True
        while True:
            while more and (idle := self._idle()) and self._ahead(done) < chunks_ahead * len(self._workers):
                job = next(jobs, None)
                more = job is not None
                if job is not None:
                    self._give(idle, job)
            if not more and not done and all(worker.job is None for worker in self._workers):
                return
            for number, chunk in self._collect():
                done[number] = chunk
                progress.add(chunk)
            progress.say(f", {sum(w.job is not None for w in self._workers)} workers busy")
            while given in done:
                yield done.pop(given)
                given += 1

    def _idle(self) -> _Worker | None:
        return next((w for w in self._workers if w.ready and w.job is None), None)

    def _ahead(self, done: dict[int, Chunk]) -> int:
        return len(done) + sum(worker.job is not None for worker in self._workers)

    def _give(self, worker: _Worker, job: _Job) -> None:
        worker.job, worker.seen = job, (self._places[worker.index], time.monotonic())
        worker.jobs.put(job)

    def _collect(self) -> Iterator[tuple[int, Chunk]]:
        """The answers that are there, after a wait for the first; looks after the workers."""
        try:
            answer = self._answers.get(timeout=look_seconds)
        except queue.Empty:
            self._look()
            return
        worker, (kind, value) = answer
        job = worker.job
        if kind == "ended":
            raise self._ended(worker)
        if kind == "failed":
            raise _failure(worker, value)
        worker.ready, worker.job = True, None
        if kind == "chunk":
            assert job is not None
            yield job.number, value
        self._look()

    def _look(self) -> None:
        """Raises DataError for a row, and DFlashError for a start, that takes too long."""
        now, limit_s = time.monotonic(), self._config.data.row_seconds
        for worker in self._workers:
            place = self._places[worker.index]
            if place != worker.seen[0]:
                worker.seen = (place, now)
            elif worker.job is not None and now - worker.seen[1] > limit_s:
                number, row = divmod(place, rows_in_chunk)
                rows = worker.job.rows
                raise too_slow(rows[row if number == worker.job.number else 0], limit_s, worker.name)
            elif not worker.ready and now - worker.seen[1] > max(start_seconds, limit_s):
                raise DFlashError(
                    "a worker process does not start",
                    where=worker.name,
                    expected=f"to have opened its tokenizer within {max(start_seconds, limit_s):g} s",
                    remedy="prepare the data in this process with data.workers=0",
                )

    def _tend(self, worker: _Worker) -> None:
        """Carries jobs to a worker and answers back. Runs in a thread of its own."""
        try:
            self._answers.put((worker, worker.pipe.recv()))
            while (job := worker.jobs.get()) is not None:
                worker.pipe.send(job)
                self._answers.put((worker, worker.pipe.recv()))
        except (EOFError, OSError):
            self._answers.put((worker, ("ended", None)))

    def _ended(self, worker: _Worker) -> DFlashError:
        worker.process.join(end_seconds)
        code = worker.process.exitcode
        how = f"exit code {code}"
        if code is not None and code < 0:
            how = f"killed by {signal.Signals(-code).name}"
        return DFlashError(
            "a worker process that prepared data has ended",
            where=worker.name,
            found=f"{how}; rows in hand: {worker.rows_in_hand()}",
            expected="to work until the last row",
            remedy="if memory ran out, lower data.workers; data.workers=0 needs none",
        )


def _failure(worker: _Worker, value: tuple[int, str] | DFlashError) -> DFlashError:
    if isinstance(value, DFlashError):
        return value
    place, text = value
    row = worker.job.rows[place] if worker.job is not None and place >= 0 else None
    return DFlashError(
        "a worker process failed",
        where=worker.name + (f", at {row.file}, line {row.line}" if row is not None else ""),
        found=text.strip(),
    )


def _work(
    pipe: Connection,
    index: int,
    places: Any,
    config: TrainConfig,
    known_by: tuple[str, str],
    parent: int,
) -> None:
    """What a worker process does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C reaches all; the parent decides
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        return
    row = -1
    try:
        maker = _open_maker(config, known_by)
        pipe.send(("ready", None))
        while True:
            job: _Job = pipe.recv()

            def begin(number: int, _row: Row, job: _Job = job) -> None:
                nonlocal row
                row = number
                places[index] = job.number * rows_in_chunk + number

            pipe.send(("chunk", maker.make(job.rows, begin)))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return
    except DFlashError as error:
        pipe.send(("failed", error))
    except Exception:  # noqa: BLE001 - the process boundary: the parent tells it
        pipe.send(("failed", (row, traceback.format_exc())))


def _open_maker(config: TrainConfig, known_by: Sequence[str]) -> ChunkMaker:
    tokenizer = open_tokenizer(config.target, config.data)
    if (tokenizer.content_sha256, tokenizer.template_sha256) != tuple(known_by):
        raise DFlashError(
            "a worker process finds another tokenizer than the one the run began with",
            where=tokenizer.name,
            remedy="leave the tokenizer's files alone while data are prepared",
        )
    return ChunkMaker(config, tokenizer)
