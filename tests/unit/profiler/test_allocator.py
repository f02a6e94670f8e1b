"""Retries of the allocator are priced against quiet time, and told from memory that is simply full."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from profiler.allocator import Allocator
from profiler.diagnosis import diagnose
from profiler.finding import Finding
from profiler.run import Run
from profiler.timeline import Timeline
from tests.run_builder import RunBuilder

GB = 1e9


def written(
    path: Path,
    retries: Callable[[int], float] | None,
    pace: Callable[[int], float],
    *,
    allocated: float = 50.0,
) -> Path:
    """80 windows of a second at most, whose lengths follow `pace` (1: as fast as can be)."""
    builder, now = RunBuilder(path, emulated=False), 0.0
    for window in range(80):
        length = 1.0 / pace(window)
        builder.span("target", 0, "forward", now, now + 1.0, tokens=20_000)
        builder.span("drafter", 0, "backward", now, now + 0.2, tokens=20_000)
        builder.span("drafter", 0, "get", now + 0.2, now + length, channel="q_hs")
        if retries is not None:
            builder.gauge("target", 0, "alloc_retries", now, retries(window))
            builder.gauge("target", 0, "reserved_bytes", now, 90 * GB)
            builder.gauge("target", 0, "allocated_bytes", now, allocated * GB)
        now += length
        builder.window(window, now, 20_000)
    return builder.finish()


def measured(path: Path) -> tuple[Allocator, Finding]:
    timeline = Timeline.of(Run.open(path))
    found = [f for f in diagnose(timeline).findings if f.cause == "allocator-fragmentation"]
    return timeline.allocator, found[0]


def test_retries_are_priced_against_the_time_before(tmp_path: Path) -> None:
    path = written(tmp_path / "r", lambda w: max(w - 39, 0), lambda w: 1.0 if w < 40 else 0.6)
    figures, finding = measured(path)
    assert figures.retries == 40
    assert figures.began_quiet
    assert finding.supported
    assert finding.measured_cost_share == pytest.approx(0.4, abs=0.02)
    assert finding.range_s[0] == pytest.approx(40, abs=2)
    assert finding.range_s[1] == pytest.approx(40 + 40 / 0.6, abs=3)
    assert "expandable_segments" in (finding.remedy.text if finding.remedy else "")


def test_memory_that_tensors_use_is_full_and_not_in_pieces(tmp_path: Path) -> None:
    path = written(tmp_path / "r", lambda w: max(w - 39, 0), lambda w: 1.0 if w < 40 else 0.6, allocated=88.0)
    finding = measured(path)[1]
    assert finding.verdict == "rejected"
    assert "98 %" in finding.summary


def test_two_retries_are_no_pattern(tmp_path: Path) -> None:
    path = written(tmp_path / "r", lambda w: min(max(w - 39, 0), 2), lambda w: 1.0 if w < 40 else 0.6)
    assert measured(path)[1].verdict == "rejected"


def test_retries_that_cost_nothing_are_rejected_by_number(tmp_path: Path) -> None:
    finding = measured(written(tmp_path / "r", lambda w: max(w - 39, 0), lambda _: 1.0))[1]
    assert finding.verdict == "rejected"
    assert "0" in finding.summary


def test_retries_from_the_start_are_bounded_by_unaccounted_time(tmp_path: Path) -> None:
    figures, finding = measured(written(tmp_path / "r", float, lambda _: 0.6))
    assert not figures.began_quiet
    assert finding.supported
    assert finding.measured_cost_share == pytest.approx(0.4, abs=0.02)


def test_none_and_unknown_are_told_apart(tmp_path: Path) -> None:
    none, finding = measured(written(tmp_path / "a", lambda _: 0.0, lambda _: 1.0))
    assert none.retries == 0
    assert finding.verdict == "rejected"
    unknown, finding = measured(written(tmp_path / "b", None, lambda _: 1.0))
    assert unknown.retries is None
    assert unknown.reason
    assert finding.verdict == "not_enough_evidence"
