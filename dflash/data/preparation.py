"""Chunks of rows made by this process, and what is told and refused meanwhile.

A row that takes too long has a name, here and in worker processes (`dflash/data/worker_pool.py`).
Knows nothing of what rows become.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from dflash.contract.config import TrainConfig
from dflash.contract.errors import DataError
from dflash.data.chunks import Chunk, ChunkMaker, Row, rows_in_chunk
from dflash.data.sources import RawRow
from dflash.data.tokenizer import ChatTokenizer

Tell = Callable[[str], None]
chunk_characters: Final = 1_000_000  # a chunk ends at the row that reaches so many
look_seconds: Final = 0.25
progress_seconds: Final = 10.0


def in_process(
    rows: Iterator[Row], config: TrainConfig, tokenizer: ChatTokenizer, tell: Tell
) -> Generator[Chunk]:
    """All chunks, made here. A row that takes too long is told at once and is an error when it is done."""
    maker, watch = ChunkMaker(config, tokenizer), _RowWatch(config.data.row_seconds, tell)
    progress = Progress(tell)
    try:
        for some in cut_rows(rows):
            chunk = maker.make(some, watch.begin)
            watch.rest()
            progress.add(chunk)
            yield chunk
    finally:
        watch.close()


def cut_rows(rows: Iterator[Row]) -> Iterator[list[Row]]:
    """The rows of each chunk: so many that they are worth sending, and not more than fit into memory."""
    some: list[Row] = []
    size = 0
    for row in rows:
        some.append(row)
        size += _size(row.payload) if isinstance(row, RawRow) else 0
        if len(some) == rows_in_chunk or size >= chunk_characters:
            yield some
            some, size = [], 0
    if some:
        yield some


def _size(value: Any) -> int:
    """Bytes or characters in a row as it was found, about."""
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, dict):
        return sum(map(_size, value.values()))
    return sum(map(_size, value)) if isinstance(value, list) else 0


@dataclass(slots=True)
class Progress:
    """A line from time to time."""

    tell: Tell
    rows: int = 0
    started: float = field(default_factory=time.monotonic)
    last: float = field(default_factory=time.monotonic)

    def add(self, chunk: Chunk) -> None:
        self.rows += chunk.rows
        self.say()

    def say(self, more: str = "") -> None:
        now = time.monotonic()
        if now - self.last >= progress_seconds:
            self.last = now
            rate = self.rows / (now - self.started)
            self.tell(f"tokens: {self.rows} rows prepared, {rate:.0f} rows/s{more}")


class _RowWatch:
    """A thread that tells of a row which this process has been at for too long."""

    def __init__(self, limit_s: float, tell: Tell) -> None:
        self._limit_s, self._tell = limit_s, tell
        self._at: tuple[Row, float] | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="row-watch", daemon=True)
        self._thread.start()

    def begin(self, _number: int, row: Row) -> None:
        """Now at this row, done with the one before. Raises DataError when that took too long."""
        self.rest()
        self._at = (row, time.monotonic())

    def rest(self) -> None:
        """At no row."""
        at, self._at = self._at, None
        if at is not None and time.monotonic() - at[1] > self._limit_s:
            raise too_slow(at[0], self._limit_s, "this process")

    def close(self) -> None:
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        told: Row | None = None
        while not self._closing.wait(min(look_seconds, self._limit_s / 4)):
            at = self._at
            if at is not None and at[0] is not told and time.monotonic() - at[1] > self._limit_s:
                told = at[0]
                self._tell(too_slow(told, self._limit_s, "this process").render())


def too_slow(row: Row, limit_s: float, who: str) -> DataError:
    """What is said of a row that takes longer than data.row_seconds."""
    return DataError(
        "a row takes too long to prepare",
        where=f"{row.file}, line {row.line}",
        found=f"{who} has been at it for more than {limit_s:g} s",
        expected=f"data.row_seconds = {limit_s:g} or less",
        remedy="mend or remove the row, or raise data.row_seconds",
    )
