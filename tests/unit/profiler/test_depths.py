"""Channel depths, weighted by how long each lasted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from profiler.depths import capacity_of, weigh_depths
from profiler.run import Run
from tests.run_builder import RunBuilder, nanoseconds

values = {"pipeline.prefetch_depth": 8, "transport.depth": 4}


def weighed(path: Path, gauges: list[tuple[str, float, float]], lo_s: float, hi_s: float) -> pd.DataFrame:
    builder = RunBuilder(path)
    for channel, at_s, depth in gauges:
        builder.gauge("target", 0, "depth", at_s, depth, channel=channel)
    events = Run.open(builder.finish()).events
    return weigh_depths(events, values, nanoseconds(lo_s), nanoseconds(hi_s))


def only(frame: pd.DataFrame) -> dict[str, Any]:
    (row,) = frame.to_dict("records")
    return {str(k): v for k, v in row.items()}


def test_a_depth_counts_for_as_long_as_it_lasts(tmp_path: Path) -> None:
    gauges = [("q_hs", 0.0, 4.0), ("q_hs", 6.0, 0.0), ("q_hs", 8.0, 2.0)]
    row = only(weighed(tmp_path / "run", gauges, 0.0, 10.0))
    assert row["mean"] == pytest.approx(2.8)
    assert (row["p10"], row["p50"], row["p90"]) == (0.0, 4.0, 4.0)
    assert row["full_share"] == row["high_share"] == pytest.approx(0.6)
    assert row["empty_share"] == row["low_share"] == pytest.approx(0.2)
    assert row["late_mean"] == pytest.approx((0.5 * 0.0 + 2.0 * 2.0) / 2.5)
    assert row["capacity"] == 4


def test_the_value_in_force_at_the_beginning_counts(tmp_path: Path) -> None:
    row = only(weighed(tmp_path / "run", [("q_pre", 0.0, 8.0), ("q_pre", 9.0, 0.0)], 5.0, 10.0))
    assert row["mean"] == pytest.approx(8.0 * 4 / 5)
    assert row["covered_s"] == pytest.approx(5.0)


def test_time_before_the_first_gauge_is_not_taken_for_empty(tmp_path: Path) -> None:
    row = only(weighed(tmp_path / "run", [("q_pre", 8.0, 8.0)], 0.0, 10.0))
    assert row["covered_s"] == pytest.approx(2.0)
    assert row["full_share"] == 1.0


def test_each_queue_of_a_drafter_has_its_row(tmp_path: Path) -> None:
    frame = weighed(tmp_path / "run", [("q_hs.1", 0.0, 1.0), ("q_hs.0", 0.0, 2.0)], 0.0, 1.0)
    assert frame["channel"].tolist() == ["q_hs.0", "q_hs.1"]
    assert frame["capacity"].tolist() == [4, 4]


def test_an_unknown_capacity_leaves_fullness_unknown(tmp_path: Path) -> None:
    row = only(weighed(tmp_path / "run", [("q_odd", 0.0, 1.0)], 0.0, 1.0))
    assert capacity_of("q_odd", values) is None
    assert pd.isna(row["full_share"])
    assert pd.isna(row["capacity"])
    assert row["mean"] == 1.0
