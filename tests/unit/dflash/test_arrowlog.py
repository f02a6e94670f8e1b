"""Streams that survive a kill, and what compacting leaves of them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from dflash.contract.arrowlog import ArrowLog, compact_log, read_log
from dflash.contract.errors import RunError

schema = pa.schema([("t_ns", pa.int64()), ("metric", pa.string()), ("value", pa.float64())])


def write(path: Path, batches: int, rows: int = 20) -> ArrowLog:
    """An open log of that many small batches."""
    log = ArrowLog(path, schema, flush_s=3600)
    for batch in range(batches):
        for row in range(rows):
            log.append((batch * rows + row, "power_w", None if row == 3 else row / 7))
        log._write_pending()
    return log


def test_what_was_flushed_is_read_though_the_end_is_missing(tmp_path: Path) -> None:
    log = write(tmp_path / "a.arrow", 5)
    table, torn = read_log(tmp_path / "a.arrow")
    assert torn
    assert table["t_ns"].to_pylist() == list(range(100))
    log.close()
    assert read_log(tmp_path / "a.arrow")[1] is False


@pytest.mark.parametrize("cut_bytes", [1, 9, 100, 300])
def test_a_tail_torn_anywhere_costs_the_tail_only(tmp_path: Path, cut_bytes: int) -> None:
    path = tmp_path / "a.arrow"
    write(path, 5).close()
    data = path.read_bytes()
    path.write_bytes(data[:-cut_bytes])
    table, torn = read_log(path)
    assert torn
    assert table["t_ns"].to_pylist() == list(range(len(table)))
    assert len(table) >= 80


def test_compacting_keeps_every_row_in_a_fraction_of_the_bytes(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    write(path, 200).close()
    before, size = read_log(path)[0], path.stat().st_size
    compact_log(path)
    after, torn = read_log(path)
    assert not torn
    assert after.equals(before)
    assert path.stat().st_size < size / 4
    assert [p.name for p in tmp_path.iterdir()] == ["a.arrow"]


def test_a_torn_log_is_not_compacted(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    write(path, 3).close()
    path.write_bytes(path.read_bytes()[:-30])
    data = path.read_bytes()
    compact_log(path)
    assert path.read_bytes() == data


def test_what_is_no_log_is_said(tmp_path: Path) -> None:
    (tmp_path / "a.arrow").write_text("hello")
    with pytest.raises(RunError, match="not a readable Arrow stream"):
        compact_log(tmp_path / "a.arrow")
