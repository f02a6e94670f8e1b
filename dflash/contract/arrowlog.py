"""Append-only Arrow IPC streams that survive kill -9: what was flushed is readable, only the tail is lost.

One background thread turns appended rows into record batches and writes them through an unbuffered
OS file, at least every `flush_s`. Readers go batch by batch and stop at a torn tail. Knows nothing of
what the rows mean.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import ipc

from dflash.contract.errors import RunError

Row = tuple[Any, ...]
compact_rows = 1 << 16  # a batch of a compacted log


class ArrowLog:
    """Rows of one schema, from any thread, into one file. `append` costs about a microsecond."""

    def __init__(self, path: Path, schema: pa.Schema, *, flush_s: float = 0.25) -> None:
        self.path, self.schema = path, schema
        self._flush_s = flush_s
        self._rows: deque[Row] = deque()
        self._closing = threading.Event()
        self._failure: Exception | None = None
        pa.array([0])  # the first conversion of all imports pandas: not while rows wait to be written
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            raise RunError("a log is never overwritten", where=str(path), remedy="use a new run directory")
        self._file = pa.OSFile(str(path), "wb")
        options = ipc.IpcWriteOptions(compression="zstd")
        self._writer = ipc.new_stream(self._file, schema, options=options)
        self._thread = threading.Thread(target=self._run, name=f"log:{path.stem}", daemon=True)
        self._thread.start()

    def append(self, row: Row) -> None:
        """Take one row, in schema order. Never blocks on the disk."""
        self._rows.append(row)

    def close(self) -> None:
        """Write what is left and end the stream. A second call does nothing."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._thread.join()
        if self._failure is not None:
            raise RunError(f"the log could not be written: {self._failure}", where=str(self.path))

    def _run(self) -> None:
        try:
            while not self._closing.wait(self._flush_s):
                self._write_pending()
            self._write_pending()
            self._writer.close()
            self._file.close()
        except (OSError, pa.ArrowException) as error:
            self._failure = error
            self._rows = deque(maxlen=0)

    def _write_pending(self) -> None:
        rows = [self._rows.popleft() for _ in range(len(self._rows))]
        if rows:
            columns = zip(*rows, strict=True)
            arrays = [pa.array(c, type=f.type) for c, f in zip(columns, self.schema, strict=True)]
            self._writer.write_batch(pa.record_batch(arrays, schema=self.schema))


class LogReader:
    """The whole record batches of a stream, one after the other, up to its end or where it is torn.

    `torn` is known when they are read. `pool`: where their memory comes from. Raises RunError when not even
    the header can be read.
    """

    def __init__(self, path: Path, pool: pa.MemoryPool | None = None) -> None:
        self.path, self.torn = path, False
        try:
            self._file = pa.OSFile(str(path), "rb")
        except OSError as error:
            raise _unreadable(path, error) from None
        try:
            self._reader = ipc.open_stream(self._file, memory_pool=pool)
        except (pa.ArrowException, OSError) as error:
            self._file.close()
            raise _unreadable(path, error) from None
        self.schema: pa.Schema = self._reader.schema

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        with self._file:
            while True:
                try:
                    batch = self._reader.read_next_batch()
                except StopIteration:
                    self.torn = not _ends_cleanly(self.path)
                    return
                except (pa.ArrowException, OSError):
                    self.torn = True
                    return
                yield batch


def _unreadable(path: Path, error: Exception) -> RunError:
    return RunError(f"not a readable Arrow stream: {error}", where=str(path))


def read_log(path: Path) -> tuple[pa.Table, bool]:
    """All whole record batches of a stream, and whether its end is torn. Raises RunError when none opens."""
    reader = LogReader(path)
    batches = list(reader)
    return pa.Table.from_batches(batches, reader.schema), reader.torn


def compact_log(path: Path) -> None:
    """Write a closed stream again in few large batches, whole or not at all. A torn one stays as it is.

    Small batches are the price of losing little in a crash: most of their bytes are framing.
    """
    table, torn = read_log(path)
    if torn:
        return
    temporary = path.with_name(f".{path.name}.tmp")
    options = ipc.IpcWriteOptions(compression=pa.Codec("zstd", compression_level=9))
    try:
        with (
            pa.OSFile(str(temporary), "wb") as file,
            ipc.new_stream(file, table.schema, options=options) as writer,
        ):
            writer.write_table(table.combine_chunks(), max_chunksize=compact_rows)
        temporary.replace(path)
    except (OSError, pa.ArrowException) as error:
        temporary.unlink(missing_ok=True)
        raise RunError(f"the log could not be compacted: {error}", where=str(path)) from None


def stream_batches(path: Path) -> Iterator[pa.RecordBatch]:
    """The same without a word on how it ends."""
    yield from LogReader(path)


def _ends_cleanly(path: Path) -> bool:
    """True when the end-of-stream marker was written (a reader accepts a cut at a batch boundary too)."""
    marker = b"\xff\xff\xff\xff\x00\x00\x00\x00"
    with path.open("rb") as file:
        file.seek(0, 2)
        if file.tell() < len(marker):
            return False
        file.seek(-len(marker), 2)
        return file.read() == marker
