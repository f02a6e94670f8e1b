"""Rows of tables: Parquet files and Arrow IPC files or streams, batch by batch, memory-mapped.

Only the columns that mean something here are read. Inside a row a null of a struct counts as absent: a column
has one type, so a struct lists the keys of all its rows and Arrow cannot tell "null" from "not given".
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import ipc, parquet

from dflash.contract.errors import DataError
from dflash.data.raw_rows import RawRow

list_names = ("messages", "conversations")  # where a row keeps its turns, first choice first
wanted_columns = (*list_names, "id", "tools", "system")

_rows_at_once = 512


def read_parquet(path: Path) -> Iterator[RawRow]:
    """All rows of a Parquet file, in order. Raises DataError and OSError."""
    with _told(path, "Parquet"), parquet.ParquetFile(path, memory_map=True) as file:
        columns = _choose_columns(file.schema_arrow, path)
        yield from _rows(file.iter_batches(_rows_at_once, columns=columns), columns, path)


def read_arrow(path: Path) -> Iterator[RawRow]:
    """All rows of an Arrow IPC file or stream, in order. Raises DataError and OSError."""
    with _told(path, "Arrow"), pa.memory_map(str(path)) as mapped, _open_ipc(mapped) as reader:
        columns = _choose_columns(reader.schema, path)
        yield from _rows(_batches(reader), columns, path)


def check_table(path: Path, kind: str) -> None:
    """Raise DataError when the table cannot be opened or has no column of conversations."""
    with _told(path, "Parquet" if kind == "parquet" else "Arrow"):
        if kind == "parquet":
            _choose_columns(parquet.read_schema(path), path)
        else:
            with pa.memory_map(str(path)) as mapped, _open_ipc(mapped) as reader:
                _choose_columns(reader.schema, path)


class _told:  # noqa: N801 - reads as a statement
    """Translates what pyarrow says of a file into DataError."""

    def __init__(self, path: Path, form: str) -> None:
        self._path, self._form = path, form

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        # ValueError: names that are no UTF-8; OSError without a number: the file ends too soon.
        told = isinstance(error, pa.ArrowException | ValueError | OverflowError)
        if told or (isinstance(error, OSError) and error.errno is None):
            text = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise DataError(
                f"the {self._form} file is damaged: {text}",
                where=str(self._path),
                remedy="write or fetch it again",
            ) from None


def _open_ipc(mapped: pa.MemoryMappedFile) -> Any:
    is_file = mapped.read(6) == b"ARROW1"
    mapped.seek(0)
    return ipc.open_file(mapped) if is_file else ipc.open_stream(mapped)


def _batches(reader: Any) -> Iterator[pa.RecordBatch]:
    if isinstance(reader, ipc.RecordBatchFileReader):
        for index in range(reader.num_record_batches):
            yield reader.get_batch(index)
    else:
        yield from reader


def _choose_columns(schema: pa.Schema, path: Path) -> list[str]:
    columns = [name for name in wanted_columns if name in schema.names]
    if not set(columns) & set(list_names):
        raise DataError(
            "no column holds conversations",
            where=str(path),
            found="columns " + (", ".join(str(name)[:40] for name in schema.names[:20]) or "none"),
            expected="a column messages or conversations: lists of turns with role and content",
            remedy="rename the column that has them",
        )
    twice = [name for name in columns if schema.names.count(name) > 1]
    if twice:
        raise DataError("a column occurs twice", where=str(path), found=twice[0], expected="one of each name")
    return columns


def _rows(batches: Iterator[pa.RecordBatch], columns: list[str], path: Path) -> Iterator[RawRow]:
    name, line = str(path), 0
    for whole in batches:
        chosen = whole.select(columns)
        for start in range(0, chosen.num_rows, _rows_at_once):
            for row in _to_python(chosen.slice(start, _rows_at_once)):
                line += 1
                if isinstance(row, str):
                    yield RawRow(file=name, line=line, payload=None, reason=row)
                else:
                    yield RawRow(file=name, line=line, payload=row)


def _to_python(batch: pa.RecordBatch) -> Iterator[dict[str, Any] | str]:
    """The rows of a batch as dicts; a reason for those with a value that Python cannot hold."""
    try:
        rows = batch.to_pylist(maps_as_pydicts="lossy")
    except (ValueError, OverflowError, pa.ArrowException):
        if batch.num_rows > 1:  # one bad value; its neighbours are not to suffer
            for index in range(batch.num_rows):
                yield from _to_python(batch.slice(index, 1))
        else:
            yield _why_unreadable(batch)
        return
    for row in rows:
        yield {key: _without_nulls(value) for key, value in row.items()}


def _why_unreadable(batch: pa.RecordBatch) -> str:
    for name in batch.schema.names:
        try:
            batch.column(name).to_pylist(maps_as_pydicts="lossy")
        except UnicodeDecodeError as error:
            return f"not UTF-8: byte 0x{error.object[error.start]:02x} in column {name}"
        except (ValueError, OverflowError, pa.ArrowException) as error:
            return f"unreadable value: column {name}: {str(error).splitlines()[0][:200]}"
    return "unreadable value: the row cannot be converted"


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value
