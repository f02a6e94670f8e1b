"""A growing stream gives each whole batch once, whatever state its end is in."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import ipc

from dflash.contract.arrowlog import compact_log, read_log
from dflash.contract.events import sample_schema
from profiler.live import stream
from profiler.live.stream import StreamTail


def write_stream(path: Path, batches: int, rows: int = 3, *, close: bool = True) -> None:
    with pa.OSFile(str(path), "wb") as file:
        writer = ipc.new_stream(file, sample_schema, options=ipc.IpcWriteOptions(compression="zstd"))
        for number in range(batches):
            columns = [[number] * rows, ["s"] * rows, ["k"] * rows, ["m"] * rows, [1.0] * rows, [None] * rows]
            arrays = [pa.array(c, f.type) for c, f in zip(columns, sample_schema, strict=True)]
            writer.write_batch(pa.record_batch(arrays, schema=sample_schema))
        if close:
            writer.close()


def tail_of(path: Path) -> StreamTail:
    return StreamTail(path, sample_schema, "samples")


def times(table: pa.Table) -> list[int]:
    return sorted(set(table["t_ns"].to_pylist()))


def test_a_file_that_is_not_there_yet_gives_nothing_and_then_everything(tmp_path: Path) -> None:
    tail = tail_of(tmp_path / "s.arrow")
    assert tail.read_new().num_rows == 0
    write_stream(tmp_path / "s.arrow", 4)
    assert times(tail.read_new()) == [0, 1, 2, 3]
    assert tail.ended
    assert tail.read_new().num_rows == 0


def test_a_log_that_was_compacted_has_ended(tmp_path: Path) -> None:
    path = tmp_path / "s.arrow"
    write_stream(path, 40, close=False)
    tail = tail_of(path)
    assert len(times(tail.read_new())) == 40
    write_stream(path, 41)
    compact_log(path)
    assert tail.read_new().num_rows == 0
    assert (tail.ended, tail.broken, tail.pending_bytes) == (True, None, 0)
    assert len(times(tail_of(path).read_new())) == 41


def test_cut_anywhere_it_gives_the_whole_batches_before_the_cut_and_later_the_rest(tmp_path: Path) -> None:
    write_stream(tmp_path / "whole.arrow", 5)
    data = (tmp_path / "whole.arrow").read_bytes()
    path = tmp_path / "s.arrow"
    for cut in range(0, len(data), 29):
        path.write_bytes(data[:cut])
        tail = tail_of(path)
        before = times(tail.read_new())
        assert before == list(range(len(before)))
        assert not tail.ended
        path.write_bytes(data)
        assert before + times(tail.read_new()) == [0, 1, 2, 3, 4]
        assert (tail.ended, tail.pending_bytes, tail.broken) == (True, 0, None)


def test_byte_by_byte_no_batch_comes_twice_or_early(tmp_path: Path) -> None:
    write_stream(tmp_path / "whole.arrow", 2)
    path, tail = tmp_path / "s.arrow", tail_of(tmp_path / "s.arrow")
    found: list[int] = []
    with path.open("ab", buffering=0) as file:
        for byte in (tmp_path / "whole.arrow").read_bytes():
            file.write(bytes([byte]))
            found += times(tail.read_new())
    assert found == [0, 1]


def test_a_torn_end_is_pending_not_an_error(tmp_path: Path) -> None:
    path = tmp_path / "s.arrow"
    write_stream(path, 3)
    path.write_bytes(path.read_bytes()[:-30])
    tail = tail_of(path)
    assert times(tail.read_new()) == [0, 1]
    assert tail.pending_bytes > 0
    assert not tail.ended
    assert tail.broken is None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"\xff" * 4,
        b"\0" * 64,
        b"no stream at all, but text" * 9,
        b"\xff\xff\xff\xff\xff\xff\xff\x7f",
    ],
)
def test_what_is_no_stream_gives_nothing_and_does_not_raise(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "s.arrow").write_bytes(data)
    tail = tail_of(tmp_path / "s.arrow")
    for _ in range(3):
        assert tail.read_new().num_rows == 0


def test_a_stream_of_something_else_says_so(tmp_path: Path) -> None:
    other = pa.schema([("colour", pa.string())])
    with ipc.new_stream(str(tmp_path / "s.arrow"), other) as writer:
        writer.write_batch(pa.record_batch([pa.array(["red"])], schema=other))
    tail = tail_of(tmp_path / "s.arrow")
    assert tail.read_new().num_rows == 0
    assert "t_ns" in str(tail.broken)


def test_of_a_long_history_the_first_and_the_newest_batches_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "head_batches", 2)
    monkeypatch.setattr(stream, "tail_batches", 3)
    write_stream(tmp_path / "s.arrow", 20)
    tail = tail_of(tmp_path / "s.arrow")
    assert times(tail.read_new()) == [0, 1, 17, 18, 19]
    assert tail.skipped_batches == 15


def test_a_block_smaller_than_the_stream_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_stream(tmp_path / "s.arrow", 30)
    monkeypatch.setattr(stream, "block_bytes", 3000)
    assert times(tail_of(tmp_path / "s.arrow").read_new()) == list(range(30))


def test_a_message_longer_than_a_block_is_refused_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_stream(tmp_path / "s.arrow", 2)
    monkeypatch.setattr(stream, "block_bytes", 64)
    tail = tail_of(tmp_path / "s.arrow")
    assert tail.read_new().num_rows == 0
    assert "byte 0" in str(tail.broken)


writing = """
import sys, time
from pathlib import Path
from dflash.contract.arrowlog import ArrowLog
from dflash.contract.events import sample_schema
log = ArrowLog(Path(sys.argv[1]), sample_schema, flush_s=0.002)
print("started", flush=True)
number = 0
while True:
    number += 1
    log.append((number, "s", "k", "m", 1.0, None))
    time.sleep(0.0001)
"""


def test_of_a_writer_that_is_killed_it_gives_what_a_full_reading_finds(
    tmp_path: Path, repository: Path
) -> None:
    for attempt in range(3):
        path = tmp_path / f"{attempt}.arrow"
        environment = {**os.environ, "PYTHONPATH": str(repository)}
        writer = subprocess.Popen(
            [sys.executable, "-c", writing, str(path)], stdout=subprocess.PIPE, env=environment
        )
        assert writer.stdout is not None
        with writer.stdout:
            writer.stdout.readline()
            tail = tail_of(path)
            rows = 0
            while rows < 50 * (attempt + 1):
                rows += tail.read_new().num_rows
                time.sleep(0.002)
            writer.send_signal(signal.SIGKILL)
            writer.wait()
        rows += tail.read_new().num_rows
        table, _ = read_log(path)
        assert rows == table.num_rows > 0
        assert table["t_ns"].to_pylist() == list(range(1, rows + 1))
