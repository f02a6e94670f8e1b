"""Rows of the last minutes, and the last row of everything that has one value at a time.

Time is that of the rows: there is no clock here. Knows nothing of what the rows mean.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc


class History:
    """Keeps what is newer than `keep_ns`, in the order of arrival."""

    def __init__(self, schema: pa.Schema, keep_ns: int, key_columns: list[str]) -> None:
        """`key_columns` tell which later row replaces which; rows with a duration replace nothing."""
        self._schema, self._keep_ns, self._key_columns = schema, keep_ns, key_columns
        self._chunks: deque[tuple[int, pa.Table]] = deque()  # (latest time in it, rows)
        self._in_force: dict[Hashable, dict[str, Any]] = {}
        self.latest_ns: int | None = None

    def add(self, rows: pa.Table) -> None:
        """Take new rows; let go of those that have become old."""
        latest_ns = pc.max(_ends_ns(rows)).as_py() if rows.num_rows else None
        if latest_ns is None:  # no rows, or none with a time
            return
        self._chunks.append((latest_ns, rows))
        self.latest_ns = max(latest_ns, self.latest_ns or latest_ns)
        lasting = _lasting(rows)
        keys = lasting.select(self._key_columns).to_pandas()
        for row in lasting.take(keys.index[~keys.duplicated(keep="last")].to_numpy()).to_pylist():
            self._in_force[tuple(row[name] for name in self._key_columns)] = row
        while self._chunks[0][0] < self.latest_ns - self._keep_ns:
            self._chunks.popleft()

    def since(self, lo_ns: int) -> pa.Table:
        """Rows that reach to `lo_ns` or beyond, and the older ones that are still in force."""
        tables = [self._schema.empty_table()]
        for latest_ns, rows in self._chunks:
            if latest_ns >= lo_ns:
                tables.append(rows.filter(pc.greater_equal(_ends_ns(rows), lo_ns)))
        old = [row for row in self._in_force.values() if row["t_ns"] is not None and row["t_ns"] < lo_ns]
        if old:
            tables.insert(1, pa.Table.from_pylist(old, schema=self._schema))
        return pa.concat_tables(tables)


class Latest:
    """The newest `count` rows of a kind, however old."""

    def __init__(self, schema: pa.Schema, count: int) -> None:
        self._rows, self._count = schema.empty_table(), count

    def add(self, rows: pa.Table) -> None:
        if rows.num_rows:
            both = pa.concat_tables([self._rows, rows])
            self._rows = both.slice(max(0, both.num_rows - self._count)).combine_chunks()

    @property
    def rows(self) -> pa.Table:
        return self._rows


def _ends_ns(rows: pa.Table) -> Any:
    """When each row ends: a span's end, else its time."""
    if "dur_ns" not in rows.column_names:
        return rows["t_ns"]
    return pc.add(rows["t_ns"], pc.fill_null(rows["dur_ns"], 0))


def _lasting(rows: pa.Table) -> pa.Table:
    return rows.filter(pc.is_null(rows["dur_ns"])) if "dur_ns" in rows.column_names else rows
