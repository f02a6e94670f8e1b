"""Shares of waiting for the GIL and for a CPU: ratios of counts, exact over any range, else unknown."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from profiler.gil_waits import GilWaits, measure_gil, no_segment, not_sampled, too_few
from profiler.run import Run
from tests.run_builder import RunBuilder, nanoseconds

Row = tuple[str, str, str, float, float | None, str | None]


def gil(path: Path, rows: Iterable[Row], lo_s: float, hi_s: float) -> GilWaits:
    builder = RunBuilder(path / "run")
    for source, key, metric, at_s, value, reason in rows:
        builder.sample(source, key, metric, at_s, value, reason)
    return measure_gil(Run.open(builder.finish()).samples, nanoseconds(lo_s), nanoseconds(hi_s))


def sweeps(until_s: int = 20) -> list[Row]:
    return [("gil_wait", "*", "gil_sweeps", float(t), 50.0 * t, None) for t in range(until_s + 1)]


def waits(key: str, *totals: tuple[float, float | None]) -> list[Row]:
    reason = "the thread ended"
    return [("gil_wait", key, "gil_wait_samples", t, v, None if v is not None else reason) for t, v in totals]


def test_a_share_is_the_growth_of_one_count_over_the_other(tmp_path: Path) -> None:
    found = gil(tmp_path, sweeps() + waits("7:python", (0, 0), (10, 100), (20, 400)), 10, 20)
    assert found.reason is None
    assert found.by_tid == {7: pytest.approx(300 / 500)}


def test_a_total_stands_where_it_has_no_row(tmp_path: Path) -> None:
    # All of the waiting was in the last second before the row.
    rows = sweeps() + waits("7:a", (0, 0), (10, 50))
    assert gil(tmp_path / "before", rows, 0, 9).by_tid == {7: 0.0}
    assert gil(tmp_path / "in it", rows, 8, 10).by_tid == {7: pytest.approx(0.5)}


def test_a_thread_that_began_later_or_ended_waited_nothing_else(tmp_path: Path) -> None:
    rows = sweeps() + waits("7:a", (5, 0), (6, 25), (7, 50), (7, None))
    assert gil(tmp_path, rows, 0, 20).by_tid == {7: pytest.approx(0.05)}


def test_waiting_for_a_cpu_stands_apart_and_joins_by_thread_id(tmp_path: Path) -> None:
    rows = sweeps() + waits("7:a", (0, 0), (10, 250))
    for t in range(21):
        rows.append(("host", "tree", "cpu_s", t, 1.5 * t, None))
        rows.append(("host", "7:renamed", "thread_cpu_s", t, 0.3 * t, None))
        rows.append(("host", "7:renamed", "thread_run_queue_wait_s", t, 0.1 * t, None))
    found = gil(tmp_path, rows, 0, 10)
    (row,) = found.threads.to_dict("records")
    assert row["gil_wait_share"] == pytest.approx(0.5)
    assert row["cpu_share"] == pytest.approx(0.3)
    assert row["cpu_wait_share"] == pytest.approx(0.1)
    assert found.cores == pytest.approx(1.5)


def test_what_was_not_sampled_is_unknown_not_zero(tmp_path: Path) -> None:
    found = gil(tmp_path / "none", [], 0, 10)
    assert (found.by_tid, found.reason, found.cores, found.held_share) == ({}, not_sampled, None, None)
    rows: list[Row] = [("host", "7:a", "thread_cpu_s", t, 1.0 * t, None) for t in range(10)]
    rows += [("host", "tree", "cpu_s", t, 1.0 * t, None) for t in range(10)]
    assert gil(tmp_path / "host only", rows, 0, 10).by_tid == {}


def test_the_reason_of_the_sampler_is_kept(tmp_path: Path) -> None:
    found = gil(tmp_path, [("gil_wait", "*", "gil_wait_samples", 1.0, None, "no permission: x")], 0, 10)
    assert (found.by_tid, found.reason) == ({}, "no permission: x")


def test_too_few_looks_are_no_share(tmp_path: Path) -> None:
    found = gil(tmp_path, sweeps() + waits("7:a", (0, 0), (1, 50)), 0.0, 0.5)
    assert found.by_tid == {}
    assert found.reason == too_few
    once = [("gil_wait", "*", "gil_sweeps", 1.0, 50.0, None), *waits("7:a", (0, 0))]
    assert gil(tmp_path / "one tick", once, 0, 10).reason == too_few


def test_keys_that_are_no_threads_are_left_out(tmp_path: Path) -> None:
    found = gil(tmp_path, sweeps() + waits("tree", (0, 0), (10, 50)) + waits("7:a", (0, 0)), 0, 10)
    assert found.by_tid == {7: 0.0}


def test_holders_are_named_with_the_largest_first(tmp_path: Path) -> None:
    rows: list[Row] = [
        ("gil", "*", "gil_held_share", 8.0, 0.9, None),
        ("gil", "target-0", "gil_hold_share", 8.0, 0.2, None),
        ("gil", "spin", "gil_hold_share", 8.0, 0.7, None),
        ("gil", "spin", "gil_hold_share", 30.0, 0.1, None),
    ]
    found = gil(tmp_path, rows, 0, 10)
    assert found.held_share == pytest.approx(0.9)
    assert found.holders == (("spin", pytest.approx(0.7)), ("target-0", pytest.approx(0.2)))
    assert found.no_holders is None
    assert gil(tmp_path / "between", rows, 9, 20).no_holders == no_segment


def test_without_py_spy_holders_are_switched_off_and_waits_are_there(tmp_path: Path) -> None:
    found = gil(tmp_path, sweeps() + waits("7:a", (0, 0), (10, 250)), 0, 10)
    assert (found.reason, found.held_share, found.holders) == (None, None, ())
    assert found.no_holders is not None
    assert found.no_holders.startswith("switched off: `dflash-profile holder RUN`")


def test_what_kept_py_spy_from_looking_is_told(tmp_path: Path) -> None:
    rows: list[Row] = [("gil", "*", "gil_held_share", 1.0, None, "py-spy is not installed")]
    assert gil(tmp_path, rows, 0, 10).no_holders == "py-spy is not installed"
