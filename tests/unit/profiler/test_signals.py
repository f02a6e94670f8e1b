"""What can and cannot be seen of a run is said, and a pipeline of other stages is shown as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from profiler.diagnosis import diagnose
from profiler.examination import examine
from profiler.run import Run
from profiler.signals import (
    cores_used,
    gil_held_share,
    mean_utilisation,
    missing_signals,
    peak_resident_bytes,
)
from profiler.timeline import Timeline
from reports.pipeline_map import describe
from reports.run_map import map_run
from reports.run_report import render_run
from tests.played_pipeline import play
from tests.run_builder import RunBuilder


def timeline_of(path: Path) -> Timeline:
    return Timeline.of(Run.open(path))


def outside(path: Path) -> Path:
    """A command that told nothing, seen from outside."""
    builder = RunBuilder(path, emulated=None)
    for at_s in range(11):
        builder.sample("host", "tree", "cpu_s", at_s, 1.5 * at_s)
        builder.sample("host", "tree", "rss_anon_bytes", at_s, 1e9 + 1e8 * at_s)
        builder.sample("host", "tree", "rss_shmem_bytes", at_s, 5e8)
        builder.sample("gpu", "GPU-a", "util_pct", at_s, 40.0)
        builder.sample("gpu", "GPU-b", "util_pct", at_s, 80.0)
    builder.sample("gil", "*", "gil_held_share", 5.0, None, "py-spy is not installed")
    return builder.finish()


def pipeline_of_others(path: Path) -> Path:
    """zencode fills q_raw, learn takes from it: neither the alphabet nor the first event orders them."""
    builder = RunBuilder(path, emulated=None)
    for step in range(40):
        at_s = float(step)
        builder.span("learn", 0, "get", at_s, at_s + 0.75, channel="q_raw")
        builder.span("learn", 0, "train", at_s + 0.75, at_s + 1.0, tokens=100)
        builder.span("zencode", 0, "encode", at_s, at_s + 0.9, tokens=100)
        builder.span("zencode", 0, "put", at_s + 0.9, at_s + 0.95, channel="q_raw")
        builder.gauge("zencode", 0, "depth", at_s + 0.95, 1.0, channel="q_raw")
        builder.gauge("learn", 0, "depth", at_s + 0.99, 0.0, channel="q_raw")
        builder.window(step, at_s + 1.0, 100)
    builder.gauge("zencode", 0, "capacity", 0.0, 4.0, channel="q_raw")
    return builder.finish()


def test_a_run_of_ours_lacks_only_what_was_not_sampled(tmp_path: Path) -> None:
    missing = missing_signals(timeline_of(play(tmp_path / "run")))
    assert {signal.name for signal in missing} == {
        "GPU utilisation and power",
        "who holds the GIL and who waits for it",
    }


def test_what_is_seen_from_outside_covers_the_samples(tmp_path: Path) -> None:
    timeline = timeline_of(outside(tmp_path / "run"))
    assert timeline.range_s == (0.0, 10.0)
    assert cores_used(timeline) == pytest.approx(1.5)
    assert peak_resident_bytes(timeline) == pytest.approx(2.5e9)
    assert mean_utilisation(timeline) == pytest.approx(0.8)
    assert gil_held_share(timeline) is None
    reasons = {signal.name: signal.reason for signal in missing_signals(timeline)}
    gil = reasons["who holds the GIL and who waits for it"]
    assert gil == "waits: the gil_wait sampler left no readings; holders: py-spy is not installed"
    assert "GPU utilisation and power" not in reasons
    assert "docs/probe-api.md" in reasons["work and waits of stages"]


def test_nothing_at_all_is_unknown_not_zero(tmp_path: Path) -> None:
    timeline = timeline_of(RunBuilder(tmp_path / "run").finish())
    seen = (cores_used, peak_resident_bytes, mean_utilisation, gil_held_share)
    assert [figure(timeline) for figure in seen] == [None] * 4
    assert len(missing_signals(timeline)) == 5


def test_a_diagnosis_from_outside_names_what_is_missing(tmp_path: Path) -> None:
    diagnosis = diagnose(timeline_of(outside(tmp_path / "run")))
    assert diagnosis.primary is not None
    assert diagnosis.primary.cause == "not-enough-data"
    assert "tells nothing of its stages" in diagnosis.headline
    assert "CPU cores in use: 1.5" in diagnosis.numbers
    assert "depths of queues" in diagnosis.next_step


def test_other_stages_have_closing_sums_waits_depths_and_throughput(tmp_path: Path) -> None:
    timeline = timeline_of(pipeline_of_others(tmp_path / "run"))
    diagnosis = diagnose(timeline)
    sums = {
        closing.stage: {part.name: part.share for part in closing.parts} for closing in diagnosis.closing_sums
    }
    assert sums["learn"]["get q_raw"] == pytest.approx(0.75)
    assert sums["zencode"]["encode"] == pytest.approx(0.9)
    assert diagnosis.throughput.tokens_per_s == pytest.approx(100)
    assert timeline.depths.set_index("channel").loc["q_raw", "capacity"] == 4
    assert timeline.service["tokens"].tolist() == pytest.approx([3900, 3900], rel=0.01)
    assert diagnosis.primary is not None
    assert diagnosis.primary.cause == "not-enough-data"
    assert "the stages are called learn, zencode" in diagnosis.headline
    evidence = {item.name: item.value for item in diagnosis.primary.evidence}
    assert evidence["learn waiting: get q_raw"] == pytest.approx(0.75)


def test_other_stages_are_drawn_in_the_order_of_the_data(tmp_path: Path) -> None:
    path = pipeline_of_others(tmp_path / "run")
    examined = examine(path)
    said = describe(map_run(examined.timeline, examined.diagnosis.capacities))
    assert 0 <= said.index("zencode 0: ") < said.index("q_raw: mean depth") < said.index("learn 0: ")
    assert said in render_run(examined)


def test_a_run_that_failed_early_is_called_so(tmp_path: Path) -> None:
    """Its data lack nothing that an instrument could tell."""
    builder = RunBuilder(tmp_path / "run")
    path = builder.finish(status="failed", reason="window.tokens is too small", exit_code=2)
    diagnosis = diagnose(Timeline.of(Run.open(path)))
    assert diagnosis.primary is not None
    assert diagnosis.primary.cause == "not-enough-data"
    assert "The run failed before" in diagnosis.headline
    assert "window.tokens is too small" in diagnosis.headline
    assert "probe-api" not in diagnosis.next_step
