"""Copies by their ends, and whose waits were for them."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from profiler.copy_times import read_copies
from profiler.run import Run
from tests.run_builder import RunBuilder, nanoseconds


def table_of(builder: RunBuilder, until_s: float = 100.0) -> pd.DataFrame:
    frame = read_copies(Run.open(builder.finish()).events, nanoseconds(0.0), nanoseconds(until_s))
    return frame.set_index(["path", "src", "dst"])


def copy(builder: RunBuilder, batch: int, begin_s: float, end_s: float, src: str, dst: str) -> None:
    path = "peer" if "host" not in (src, dst) else "pinned"
    facts = {"src": src, "dst": dst, "path": path, "bytes": 10**9, "batch": batch}
    builder.span("link", 0, "copy", begin_s, end_s, **facts)


def test_a_drafters_wait_is_shared_by_the_hops_of_its_batch(tmp_path: Path) -> None:
    builder = RunBuilder(tmp_path / "run")
    copy(builder, 1, 0.0, 3.0, "a", "host")
    copy(builder, 1, 3.0, 4.0, "host", "d")
    copy(builder, 2, 4.0, 5.0, "b", "host")
    builder.span("drafter", 0, "copy_wait", 2.0, 4.0, batch=1)
    table = table_of(builder)
    assert table.loc[("pinned", "a", "host"), "drafter_wait_s"] == pytest.approx(1.5)
    assert table.loc[("pinned", "host", "d"), "drafter_wait_s"] == pytest.approx(0.5)
    assert table.loc[("pinned", "b", "host"), "drafter_wait_s"] == 0.0
    assert table["target_wait_s"].sum() == 0.0
    assert table.loc[("pinned", "a", "host"), "gb_per_s"] == pytest.approx(1 / 3)


def test_a_target_waited_for_the_copy_of_its_own_that_had_just_ended(tmp_path: Path) -> None:
    builder = RunBuilder(tmp_path / "run")
    for batch, target in ((1, 0), (2, 1), (3, 0)):
        builder.span("target", target, "forward", 0.1 * batch, 0.1 * batch + 0.1, batch=batch, tokens=10)
    copy(builder, 1, 0.2, 5.0, "a", "d")
    copy(builder, 2, 0.3, 5.0009, "b", "d")  # of another target, at about the same time
    copy(builder, 3, 5.0, 9.0, "a", "d")
    builder.span("target", 0, "copy_wait", 1.0, 5.0, batch=9)
    table = table_of(builder)
    assert table.loc[("peer", "a", "d"), "target_wait_s"] == pytest.approx(4.0)
    assert table.loc[("peer", "b", "d"), "target_wait_s"] == 0.0


def test_waits_without_a_copy_and_for_new_slabs_are_nobodys(tmp_path: Path) -> None:
    builder = RunBuilder(tmp_path / "run")
    copy(builder, 1, 0.0, 1.0, "a", "d")
    builder.span("drafter", 0, "copy_wait", 1.0, 2.0, batch=7)
    builder.span("target", 1, "copy_wait", 1.0, 2.0, batch=7)  # no forward says that copies are its own
    builder.span("target", 0, "forward", 0.0, 0.1, batch=1, tokens=10)
    builder.span("target", 0, "copy_wait", 1.0, 2.0, batch=7, note="slab")
    table = table_of(builder)
    assert table[["target_wait_s", "drafter_wait_s"]].to_numpy().sum() == 0.0


def test_a_run_without_copies_has_an_empty_table(tmp_path: Path) -> None:
    builder = RunBuilder(tmp_path / "run")
    builder.span("target", 0, "forward", 0.0, 1.0, batch=1, tokens=10)
    assert len(table_of(builder)) == 0


def test_own_copies_are_no_waits_and_unknown_bytes_no_rate(tmp_path: Path) -> None:
    builder = RunBuilder(tmp_path / "run")
    builder.span("target", 0, "copy", 0.0, 2.0, src="a", dst="host", path="pageable", bytes=None, batch=1)
    builder.span("drafter", 0, "copy_wait", 2.0, 3.0, batch=1)
    table = table_of(builder)
    row = table.loc[("pageable", "a", "host")]
    assert (row["copies"], row["seconds"], row["drafter_wait_s"]) == (1, 2.0, 0.0)
    assert pd.isna(row["gb_per_s"])
