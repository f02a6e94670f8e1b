"""Costs by block add up to the threads' time, and are those of the closing sums."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from profiler.run import Run
from profiler.stage_costs import measure_costs, most_blocks
from profiler.timeline import Timeline
from tests.gil_samples import add_gil
from tests.played_pipeline import play
from tests.run_builder import RunBuilder


def test_blocks_cover_the_steady_time_of_every_thread(tmp_path: Path) -> None:
    run = Run.open(play(tmp_path / "r", windows=30, targets=2, drafters=1, drafter_copy_s=0.3))
    timeline = Timeline.of(run)
    costs = measure_costs(run, timeline)
    assert len(costs.tokens) == most_blocks
    for stage, threads in (("target", 2), ("drafter", 1)):
        total = sum(float(spent.sum()) for (name, _, _), spent in costs.seconds.items() if name == stage)
        assert total == pytest.approx(threads * costs.range_s, rel=1e-6)
    assert costs.pace == pytest.approx(costs.range_s / costs.tokens.sum())


def test_a_batch_costs_what_was_played(tmp_path: Path) -> None:
    run = Run.open(play(tmp_path / "r", windows=30, targets=2, jitter=0.0, warmup_windows=0))
    costs = measure_costs(run, Timeline.of(run))
    assert costs.s_per_batch(("target", "work", "forward")) == pytest.approx(1.0, rel=0.03)
    assert costs.s_per_batch(("drafter", "work", "backward")) == pytest.approx(0.2, rel=0.03)
    # Two targets in parallel: a token takes half of a target's time for it.
    assert costs.s_per_token(("target", "work", "forward"))[0] == pytest.approx(1.0 / 1000 / 2, rel=0.03)


def test_waits_for_the_gil_are_those_of_the_closing_sums(tmp_path: Path) -> None:
    run = Run.open(add_gil(play(tmp_path / "r", windows=30, targets=2), {300: 0.3, 301: 0.3}))
    timeline = Timeline.of(run)
    costs, whole = measure_costs(run, timeline), measure_costs(run, timeline, split_gil=False)
    devices = timeline.devices
    is_gil = (devices["stage"] == "target") & (devices["kind"] == "gil_wait")
    expected_s = float(devices.loc[is_gil, "seconds"].sum())
    waited, work = ("target", "gil_wait", "gil_wait"), ("target", "work", "forward")
    assert float(costs.of(waited).sum()) == pytest.approx(expected_s, rel=0.05)
    assert waited not in whole.seconds
    together = costs.of(waited) + costs.of(work)
    assert together.sum() == pytest.approx(whole.of(work).sum(), rel=1e-6)


def test_a_part_that_never_was_costs_nothing(tmp_path: Path) -> None:
    run = Run.open(play(tmp_path / "r", windows=20))
    costs = measure_costs(run, Timeline.of(run))
    nothing = ("target", "copy", "copy pinned")
    assert costs.s_per_batch(nothing) == 0.0
    assert costs.s_per_token(nothing, np.array([[0, 1], [2, 2]])).tolist() == [0.0, 0.0]
    assert costs.s_per_batch(("nobody", "work", "rest")) is None


def test_without_steady_windows_there_are_no_blocks(tmp_path: Path) -> None:
    builder = RunBuilder(tmp_path / "r")
    builder.span("target", 0, "forward", 0.0, 1.0, tokens=10)
    builder.finish()
    run = Run.open(tmp_path / "r")
    costs = measure_costs(run, Timeline.of(run))
    assert len(costs.tokens) == 0
    assert costs.seconds == {}
