"""One Arrow stream that another process is still writing: whole new record batches since the last look.

Costs what is new, not what is there. Of a long history only the first and the newest batches are decoded.
Knows nothing of what the rows mean.
"""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyarrow import ipc

from dflash.contract.errors import RunError
from profiler.run import conform

block_bytes: Final = 64 << 20  # read at a time; a batch is a quarter of a second, so never as long
head_batches: Final = 40  # of a long history: its first ten seconds, which hold what is written on change
tail_batches: Final = 2400  # … and its last ten minutes: writers flush every quarter of a second
_end_of_stream: Final = b"\xff\xff\xff\xff\x00\x00\x00\x00"


class StreamTail:
    """Reads one growing stream from where it last stopped. It may not be there yet, and may end torn."""

    def __init__(self, path: Path, schema: pa.Schema, what: str) -> None:
        """`what`: events or samples; its columns are brought into `schema`."""
        self.path, self._schema, self._what = path, schema, what
        self._offset = 0  # behind the last whole message
        self._number: int | None = None  # of the file's inode
        self._own_schema: pa.Schema | None = None
        self.pending_bytes = (
            0  # of a message that is not whole (yet): the torn end of a writer that was killed
        )
        self.skipped_batches = 0  # of a long history, neither among its first nor its last
        self.ended = False  # the writer has closed it
        self.broken: str | None = None  # why nothing more is read

    def read_new(self) -> pa.Table:
        """The rows of all whole batches written since the last call."""
        head: list[Any] = []
        tail: deque[Any] = deque(maxlen=tail_batches)
        while self.broken is None and not self.ended and (messages := self._read_block()):
            for message in messages:
                if message.type == "schema" and self._own_schema is None:
                    self._own_schema = ipc.read_schema(message)
                elif message.type != "record batch" or self._own_schema is None:
                    self.broken = f"not a stream of record batches: it holds a {message.type} message"
                    break
                elif len(head) < head_batches:
                    head.append(message)
                else:
                    self.skipped_batches += len(tail) == tail_batches
                    tail.append(message)
        return self._decode([*head, *tail])

    def _read_block(self) -> list[Any]:
        """Whole messages behind the offset, which moves on; none when nothing whole is there."""
        try:
            with self.path.open("rb") as file:
                number = os.fstat(file.fileno()).st_ino
                if self._number not in (None, number):  # compacted: its writer has ended
                    self.ended, self.pending_bytes = True, 0
                    return []
                self._number = number
                file.seek(self._offset)
                data = file.read(block_bytes)
        except OSError:
            return []  # not there yet, or no longer
        buffer = pa.BufferReader(data)
        messages: list[Any] = []
        consumed = 0
        try:
            while consumed < len(data):
                messages.append(ipc.read_message(buffer))
                consumed = buffer.tell()
        except (EOFError, OSError, pa.ArrowException):
            self.ended = data[consumed:] == _end_of_stream
        self._offset += consumed
        self.pending_bytes = 0 if self.ended else len(data) - consumed
        if not messages and len(data) == block_bytes:
            self.broken = f"no whole message in the {block_bytes >> 20} MB from byte {self._offset}"
        return messages

    def _decode(self, messages: list[Any]) -> pa.Table:
        if not messages or self._own_schema is None:
            return self._schema.empty_table()
        try:
            batches = [ipc.read_record_batch(message, self._own_schema) for message in messages]
            table = pa.Table.from_batches(batches, self._own_schema)
            return conform(table, self._schema, self._what, self.path)
        except RunError as error:
            self.broken = error.what
        except (OSError, pa.ArrowException) as error:
            self.broken = f"a batch cannot be read: {error}"
        return self._schema.empty_table()
