"""Closing sums: they add up to the nanosecond, whatever the spans."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiler.run import Run
from profiler.waits import close_devices, close_threads, thread_spans
from tests.run_builder import RunBuilder, nanoseconds

Spans = list[tuple[int, int, str]]


def spans_of(path: Path, emit: Callable[[RunBuilder], None]) -> pd.DataFrame:
    builder = RunBuilder(path)
    emit(builder)
    return thread_spans(Run.open(builder.finish()).events)


def frame_of(spans: Spans, clock: str = "host") -> pd.DataFrame:
    """Spans of target 0 as `thread_spans` gives them, without the detour of a file."""
    rows = [
        {"stage": "target", "index": 0, "device": "cuda:0", "tid": 7, "clock": clock, "name": name}
        | {"kind": "work", "channel": "n/a", "path": "n/a", "start_ns": begin, "end_ns": begin + length}
        for begin, length, name in spans
    ]
    return pd.DataFrame(rows)


def sums(frame: pd.DataFrame) -> dict[str, int]:
    return {str(k): int(v) for k, v in frame.groupby("name")["ns"].sum().items()}


lists_of_spans = st.lists(
    st.tuples(st.integers(0, 10**12), st.integers(0, 10**11), st.sampled_from(["forward", "gather"])),
    min_size=1,
    max_size=30,
)


@settings(max_examples=40)
@given(lists_of_spans, st.integers(0, 10**12), st.integers(1, 10**12))
def test_a_closing_sum_is_the_range_exactly(spans: Spans, lo_ns: int, length_ns: int) -> None:
    closed, overlap_s = close_threads(frame_of(spans), lo_ns, lo_ns + length_ns)
    assert int(closed["ns"].sum()) == length_ns
    assert bool((closed["ns"] >= 0).all())
    assert overlap_s >= 0


@settings(max_examples=40)
@given(lists_of_spans, lists_of_spans, st.integers(0, 10**12), st.integers(1, 10**12))
def test_a_device_closes_exactly_too(host: Spans, gpu: Spans, lo_ns: int, length_ns: int) -> None:
    both = pd.concat([frame_of(host), frame_of(gpu, "gpu")])
    closed = close_devices(both, lo_ns, lo_ns + length_ns)
    assert int(closed["ns"].sum()) == length_ns
    assert bool((closed["ns"] >= 0).all())


def test_kinds_names_and_channels_are_told_apart(tmp_path: Path) -> None:
    def emit(builder: RunBuilder) -> None:
        builder.span("target", 0, "get", 0.0, 1.0, channel="q_pre")
        builder.span("target", 0, "forward", 1.0, 5.0)
        builder.span("target", 0, "copy", 5.0, 7.0, path="pageable")
        builder.span("target", 0, "put", 7.0, 8.0, channel="q_hs.1")
        builder.span("target", 0, "gpu_wait", 8.0, 9.0)

    closed, overlap_s = close_threads(spans_of(tmp_path / "run", emit), nanoseconds(0), nanoseconds(10))
    told = {(r["kind"], r["name"], r["channel"], r["path"]): r["seconds"] for r in closed.to_dict("records")}
    assert told == {
        ("wait", "get", "q_pre", "n/a"): 1.0,
        ("work", "forward", "n/a", "n/a"): 4.0,
        ("copy", "copy", "n/a", "pageable"): 2.0,
        ("wait", "put", "q_hs", "n/a"): 1.0,
        ("gpu_wait", "gpu_wait", "n/a", "n/a"): 1.0,
        ("unaccounted", "unaccounted", "n/a", "n/a"): 1.0,
    }
    assert overlap_s == 0


def test_spans_are_clipped_to_the_range(tmp_path: Path) -> None:
    spans = spans_of(tmp_path / "run", lambda b: b.span("target", 0, "forward", 0.0, 10.0))
    closed, _ = close_threads(spans, nanoseconds(4), nanoseconds(6))
    assert sums(closed) == {"forward": 2_000_000_000, "unaccounted": 0}


def test_overlap_is_counted_once_and_told() -> None:
    closed, overlap_s = close_threads(frame_of([(0, 6, "forward"), (4, 4, "gather")]), 0, 10)
    assert sums(closed) == {"forward": 6, "gather": 2, "unaccounted": 2}
    assert overlap_s == pytest.approx(2e-9)


def test_asynchronous_copies_are_nobodys_time(tmp_path: Path) -> None:
    def emit(builder: RunBuilder) -> None:
        builder.span("target", 0, "forward", 0.0, 4.0, tid=300)
        builder.span("link", 0, "copy", 1.0, 3.0, path="peer", tid=300)

    closed, overlap_s = close_threads(spans_of(tmp_path / "run", emit), nanoseconds(0), nanoseconds(4))
    assert sums(closed) == {"forward": 4_000_000_000, "unaccounted": 0}
    assert overlap_s == 0


def test_a_trainer_span_from_a_drafter_thread_is_the_drafters(tmp_path: Path) -> None:
    def emit(builder: RunBuilder) -> None:
        builder.span("drafter", 0, "backward", 0.0, 2.0, tid=77)
        builder.span("trainer", 0, "checkpoint", 2.0, 3.0, tid=77)
        builder.span("trainer", 0, "load", 0.0, 3.0, tid=1)

    closed, _ = close_threads(spans_of(tmp_path / "run", emit), nanoseconds(0), nanoseconds(3))
    assert set(closed["stage"]) == {"drafter"}
    assert sums(closed) == {"backward": 2_000_000_000, "checkpoint": 1_000_000_000, "unaccounted": 0}


def test_a_blocking_copy_that_waits_for_the_forward_is_forward_time() -> None:
    # On CUDA `.cpu()` returns when the stream is through: the host sees one long copy.
    host = frame_of([(0, 5, "forward"), (5, 95, "copy")])
    closed = close_devices(pd.concat([host, frame_of([(2, 70, "forward")], "gpu")]), 0, 100)
    assert sums(closed) == {"forward": 72, "copy": 28, "unaccounted": 0}
    threads, _ = close_threads(host, 0, 100)
    assert sums(threads) == {"forward": 5, "copy": 95, "unaccounted": 0}


def test_without_gpu_times_the_device_is_the_thread() -> None:
    host = frame_of([(0, 5, "forward"), (7, 2, "gather")])
    assert sums(close_devices(host, 0, 10)) == sums(close_threads(host, 0, 10)[0])


def test_a_thread_that_ended_waits_for_nobody_and_works_on_nothing(tmp_path: Path) -> None:
    def emit(builder: RunBuilder) -> None:
        builder.span("prefetch", 0, "pack", 0.0, 2.0)
        builder.mark("prefetch", 0, "stop", 3.0)

    closed, overlap_s = close_threads(spans_of(tmp_path / "run", emit), nanoseconds(0), nanoseconds(10))
    assert sums(closed) == {"pack": 2_000_000_000, "ended": 7_000_000_000, "unaccounted": 1_000_000_000}
    assert set(closed.loc[closed["name"] == "ended", "kind"]) == {"wait"}
    assert overlap_s == 0


@settings(max_examples=40)
@given(lists_of_spans, st.integers(0, 10**12), st.integers(1, 10**12), st.floats(0, 1))
def test_waits_for_the_gil_come_out_of_work_and_the_sum_stays(
    spans: Spans, lo_ns: int, length_ns: int, share: float
) -> None:
    plain, _ = close_threads(frame_of(spans), lo_ns, lo_ns + length_ns)
    closed, _ = close_threads(frame_of(spans), lo_ns, lo_ns + length_ns, {7: share})
    work_ns = int(plain.loc[plain["kind"] == "work", "ns"].sum())
    gil_ns = int(closed.loc[closed["kind"] == "gil_wait", "ns"].sum())
    assert int(closed["ns"].sum()) == length_ns
    assert bool((closed["ns"] >= 0).all())
    assert gil_ns == pytest.approx(min(share * length_ns, work_ns), abs=len(spans) + 1)
    assert sums(closed)["unaccounted"] == sums(plain)["unaccounted"]


def test_waits_for_the_gil_are_not_taken_out_of_other_waits_or_from_other_threads() -> None:
    spans = frame_of([(0, 40, "forward"), (40, 60, "get")])
    spans.loc[1, "kind"] = "wait"
    closed, _ = close_threads(spans, 0, 100, {7: 0.9, 8: 0.5})
    assert sums(closed) == {"gil_wait": 40, "get": 60, "unaccounted": 0}
    assert sums(close_threads(spans, 0, 100, {8: 0.5})[0]) == {"forward": 40, "get": 60, "unaccounted": 0}


def test_a_working_device_lost_nothing_to_the_gil() -> None:
    # The host was in forward for 100, half of it waiting; the GPU worked for 60 of them.
    both = pd.concat([frame_of([(0, 100, "forward")]), frame_of([(0, 60, "forward")], "gpu")])
    assert sums(close_devices(both, 0, 100, {7: 0.5})) == {"forward": 80, "gil_wait": 20, "unaccounted": 0}
