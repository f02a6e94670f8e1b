"""A history keeps the last minutes and what is still in force, and lets the rest go."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from dflash.contract.events import event_schema, sample_schema
from profiler.live.history import History, Latest


def samples(*rows: tuple[int | None, str, float | None]) -> pa.Table:
    plain = [{"t_ns": t, "source": "s", "key": key, "metric": "m", "value": value} for t, key, value in rows]
    return pa.Table.from_pylist(plain, schema=sample_schema)


def sample_history(keep_ns: int = 100) -> History:
    return History(sample_schema, keep_ns, ["source", "key", "metric"])


def seen(table: pa.Table) -> list[tuple[Any, Any]]:
    return sorted(zip(table["t_ns"].to_pylist(), table["value"].to_pylist(), strict=True))


def test_since_gives_the_range_and_what_was_in_force_before_it() -> None:
    history = sample_history()
    history.add(samples((10, "a", 1.0), (11, "b", 2.0), (20, "a", 3.0), (30, "c", 4.0)))
    assert seen(history.since(15)) == [(11, 2.0), (20, 3.0), (30, 4.0)]
    assert seen(history.since(25)) == [(11, 2.0), (20, 3.0), (30, 4.0)]


def test_a_reading_that_failed_replaces_the_value_before_it() -> None:
    history = sample_history()
    history.add(samples((10, "a", 1.0), (20, "a", None)))
    assert seen(history.since(50)) == [(20, None)]


def test_the_past_is_let_go_but_for_what_is_in_force() -> None:
    history = sample_history(keep_ns=100)
    for t_ns in range(0, 3_000, 10):
        history.add(samples((t_ns, "a", float(t_ns)), (0, "b", 7.0)))
    assert len(history._chunks) <= 12
    assert seen(history.since(2_980)) == [(0, 7.0), (2_980, 2_980.0), (2_990, 2_990.0)]


def test_a_span_counts_until_its_end_and_replaces_nothing() -> None:
    history = History(event_schema, 1000, ["kind", "name", "stage", "index", "channel"])
    rows = [
        {"t_ns": 10, "dur_ns": 40, "kind": "span", "name": "forward"},
        {"t_ns": 10, "dur_ns": 5, "kind": "span", "name": "forward"},
        {"t_ns": 12, "kind": "gauge", "name": "depth", "channel": "q_pre", "value": 2.0},
    ]
    history.add(pa.Table.from_pylist(rows, schema=event_schema))
    assert history.latest_ns == 50
    assert history.since(45)["dur_ns"].to_pylist() == [None, 40]


def test_rows_without_a_time_and_no_rows_change_nothing() -> None:
    history = sample_history()
    history.add(samples())
    history.add(samples((None, "a", 1.0)))
    assert history.latest_ns is None
    assert history.since(0).num_rows == 0


def test_latest_keeps_the_newest_however_old() -> None:
    latest = Latest(sample_schema, 3)
    for number in range(10):
        latest.add(samples((number, "a", float(number))))
        latest.add(samples())
    assert latest.rows["t_ns"].to_pylist() == [7, 8, 9]
