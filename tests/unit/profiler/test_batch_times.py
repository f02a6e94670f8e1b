"""How long every batch's work took, from the events of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from profiler.batch_times import read_batch_times
from profiler.run import Run
from tests.run_builder import RunBuilder, nanoseconds


def read(builder: RunBuilder, end_s: float = 10.0) -> list[tuple[object, ...]]:
    events = Run.open(builder.finish()).events
    frame = read_batch_times(events, nanoseconds(0.0), nanoseconds(end_s))
    return list(frame[["stage", "batch", "tokens", "seconds", "beside"]].itertuples(index=False, name=None))


def test_a_batch_has_the_time_of_its_main_work_and_of_whoever_works_beside(tmp_path: Path) -> None:
    builder = RunBuilder(tmp_path / "run")
    builder.span("target", 0, "forward", 1.0, 3.0, batch=0, tokens=100)
    builder.span("target", 0, "gather", 3.0, 3.5, batch=0, tokens=100)
    builder.span("drafter", 0, "backward", 2.0, 3.0, batch=0, tokens=100)
    assert read(builder) == [
        ("target", 0, 100, pytest.approx(2.0), pytest.approx(0.5)),
        ("drafter", 0, 100, pytest.approx(1.0), pytest.approx(1.0)),
    ]


def test_gpu_time_takes_the_place_of_what_python_saw(tmp_path: Path) -> None:
    builder = RunBuilder(tmp_path / "run")
    builder.span("target", 0, "forward", 1.0, 1.1, batch=0, tokens=100)
    builder.span("target", 0, "forward", 1.1, 3.1, batch=0, tokens=100, clock="gpu")
    assert read(builder) == [("target", 0, 100, pytest.approx(2.0), pytest.approx(0.0))]


def test_work_across_the_edge_of_the_range_is_left_out(tmp_path: Path) -> None:
    builder = RunBuilder(tmp_path / "run")
    builder.span("drafter", 0, "backward", 1.0, 2.0, batch=0, tokens=10)
    builder.span("drafter", 0, "backward", 2.0, 4.0, batch=1, tokens=10)
    assert [row[1] for row in read(builder, end_s=3.0)] == [0]


def test_a_stranger_s_work_is_the_longest_span_with_tokens(tmp_path: Path) -> None:
    builder = RunBuilder(tmp_path / "run")
    builder.span("drafter", 0, "train_step", 1.0, 2.0, batch=0, tokens=10)
    builder.span("drafter", 0, "log", 2.0, 2.1, batch=0, tokens=10)
    builder.span("drafter", 0, "sleep", 2.1, 9.0, batch=0)
    assert [row[3] for row in read(builder)] == [pytest.approx(1.0)]
