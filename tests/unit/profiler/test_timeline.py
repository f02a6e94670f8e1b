"""The steady range of a run as frames."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from profiler.run import Run
from profiler.timeline import Timeline
from tests.played_pipeline import play
from tests.run_builder import RunBuilder


def timeline_of(path: Path) -> Timeline:
    return Timeline.of(Run.open(path))


def test_every_thread_of_a_played_run_adds_up_exactly(tmp_path: Path) -> None:
    timeline = timeline_of(play(tmp_path / "run", targets=3, drafters=2, target_copy_s=0.1, preset="host"))
    lo_ns, hi_ns = timeline.range_ns
    for frame in (timeline.threads, timeline.devices):
        sums = frame.groupby(["stage", "index"])["ns"].sum()
        assert sums.to_dict() == {
            (stage, index): hi_ns - lo_ns
            for stage, count in (("prefetch", 1), ("target", 3), ("drafter", 2))
            for index in range(count)
        }
    assert timeline.warnings == ()


def test_service_times_are_those_played(tmp_path: Path) -> None:
    timeline = timeline_of(play(tmp_path / "run", gather_s=0.1, jitter=0.0, optimizer_s=0.0))
    service = timeline.service.groupby("stage")["s_per_batch"].mean()
    assert service["target"] == pytest.approx(1.1, rel=1e-3)
    assert service["drafter"] == pytest.approx(0.2, rel=1e-3)
    assert service["prefetch"] == pytest.approx(0.02, rel=1e-3)
    assert timeline.service["s_per_token"].mean() == pytest.approx(
        timeline.service["s_per_batch"].mean() / 1000
    )


def test_warm_up_is_outside(tmp_path: Path) -> None:
    timeline = timeline_of(play(tmp_path / "run", warmup_windows=3))
    assert timeline.steady.warmup_windows >= 2  # the first window has no beginning
    assert timeline.range_s[0] > 3 * 6 * 3.0 / 3


def test_the_drain_after_the_targets_end_is_outside(tmp_path: Path) -> None:
    path = play(tmp_path / "run", backward_s=0.5, depth=30)
    run = Run.open(path)
    stops = run.events[(run.events["name"] == "stop") & (run.events["stage"] == "target")]
    timeline = Timeline.of(run)
    assert timeline.range_ns[1] == stops["t_ns"].min()
    assert timeline.steady.end_ns > timeline.range_ns[1]


def test_a_target_that_ends_before_the_first_window_does_not_empty_the_range(tmp_path: Path) -> None:
    builder = RunBuilder(tmp_path / "run")
    builder.mark("target", 0, "stop", 1.0)
    for batch in range(3):
        builder.span("target", 1, "forward", batch, batch + 1.0, batch=batch, tokens=100)
        builder.window(batch, batch + 2.0, 100)
    lo_ns, hi_ns = timeline_of(builder.finish()).range_ns
    assert hi_ns > lo_ns


def test_gpu_times_are_preferred_to_enqueueing(tmp_path: Path) -> None:
    builder = RunBuilder(tmp_path / "run")
    for batch in range(12):
        at_s = 10.0 * batch
        facts = {"batch": batch, "tokens": 100}
        builder.span("target", 0, "forward", at_s, at_s + 1.0, **facts)
        builder.span("target", 0, "gather", at_s + 1.0, at_s + 2.0, **facts)
        builder.span("target", 0, "forward", at_s + 1.0, at_s + 9.0, clock="gpu", **facts)
        builder.window(batch, at_s + 10.0, 100)
    row = timeline_of(builder.finish()).service.iloc[0]
    assert row["clock"] == "gpu"
    assert row["s_per_batch"] == pytest.approx(8.0 + 1.0)


def test_copies_and_takes_are_summed_by_where_they_went(tmp_path: Path) -> None:
    settings = {"targets": 2, "drafters": 2, "preset": "shared", "depth": 8, "away_copy_s": 0.5}
    timeline = timeline_of(play(tmp_path / "run", item_bytes=1_000_000, **settings))
    takes = timeline.takes.groupby("where")["takes"].sum()
    moves = timeline.copies[timeline.copies["stage"] == "drafter"]
    assert moves["copies"].sum() == pytest.approx(takes["away"], abs=2)  # at the edges of the range
    assert moves["bytes"].sum() == moves["copies"].sum() * 1_000_000
    assert moves["gb_per_s"].tolist() == pytest.approx([1e-3 / 0.5] * len(moves), rel=0.1)


def test_unknown_bytes_leave_the_rate_unknown(tmp_path: Path) -> None:
    builder = RunBuilder(tmp_path / "run")
    builder.span("target", 0, "copy", 0.0, 1.0, path="peer", bytes=10)
    builder.span("target", 0, "copy", 1.0, 2.0, path="peer")
    copies = timeline_of(builder.finish()).copies
    assert copies["copies"].tolist() == [2]
    assert copies["bytes"].isna().all()
    assert copies["gb_per_s"].isna().all()


def test_samples_are_on_the_same_clock(tmp_path: Path) -> None:
    timeline = timeline_of(play(tmp_path / "run", preset="host"))
    resident = timeline.series("rss_anon_bytes")
    lo_s, hi_s = timeline.range_s
    assert len(resident) > 10
    assert resident["t_s"].between(lo_s, hi_s).all()


def test_what_is_left_out_is_told(tmp_path: Path) -> None:
    builder = RunBuilder(tmp_path / "run")
    builder.span("target", 0, "forward", 0.0, 2.0)
    builder.span("target", 0, "gather", 1.0, 3.0)
    builder.gauge("target", 0, "depth", 0.0, 1.0, channel="q_hs")
    builder.window(0, 1.0, None)
    path = builder.finish(status="failed", reason="out of memory")
    (path / "events" / "other.arrow").write_bytes(b"ARROW")
    warnings = " | ".join(timeline_of(path).warnings)
    for part in (
        "other.arrow",
        "1 window marks",
        "overlapped for 1 s",
        "configuration is missing",
        "out of memory",
    ):
        assert part in warnings


def test_a_run_without_events_has_an_empty_timeline(tmp_path: Path) -> None:
    timeline = timeline_of(RunBuilder(tmp_path / "run").finish())
    assert timeline.range_ns == (0, 0)
    assert len(timeline.threads) == len(timeline.service) == len(timeline.depths) == len(timeline.copies) == 0


def test_no_number_is_the_word_nan_in_a_name(tmp_path: Path) -> None:
    timeline = timeline_of(play(tmp_path / "run"))
    for frame in (timeline.threads, timeline.service, timeline.copies, timeline.takes):
        names = frame.select_dtypes(exclude="number")
        assert "nan" not in json.dumps(names.astype(str).to_dict("list")).lower()
