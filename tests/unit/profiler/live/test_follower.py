"""Following a run reads it as it grows, keeps what matters of its past, and never takes it for finished."""

from __future__ import annotations

from pathlib import Path

import pytest

from dflash.contract.arrowlog import ArrowLog
from dflash.contract.errors import RunError
from dflash.contract.events import event_schema, open_events, sample_schema
from dflash.contract.rundir import create_run
from profiler.live import follower
from profiler.live.follower import RunFollower
from tests.played_pipeline import play
from tests.run_builder import RunBuilder

second_ns = 1_000_000_000


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"no run\.json"):
        RunFollower(tmp_path)


def test_a_run_that_has_written_nothing_has_no_times(tmp_path: Path) -> None:
    create_run(tmp_path / "r", command=["x"])
    recent = RunFollower(tmp_path / "r").poll()
    assert (recent.since_ns, recent.latest_ns) == (None, None)
    assert len(recent.run.events) == len(recent.run.samples) == len(recent.windows) == 0


def test_streams_that_appear_later_are_found_and_rows_come_as_they_are_flushed(tmp_path: Path) -> None:
    run = create_run(tmp_path / "r", command=["x"])
    follow = RunFollower(run.path)
    follow.poll()
    log, probe = open_events(run.events / "trainer-1.arrow")
    probe.mark("window", t_ns=5 * second_ns, window=0, tokens=10)
    log.close()
    assert follow.poll().windows["window"].tolist() == [0]
    samples = ArrowLog(run.samples / "host.arrow", sample_schema)
    samples.append((6 * second_ns, "host", "tree", "rss_anon_bytes", 7.0, None))
    samples.close()
    recent = follow.poll()
    assert recent.run.samples["value"].tolist() == [7.0]
    assert recent.latest_ns == 6 * second_ns
    assert len(follow.poll().windows) == 1, "nothing is read twice"


def test_a_reading_from_one_look_equals_one_from_many(tmp_path: Path) -> None:
    whole = play(tmp_path / "whole", windows=30)
    data = (whole / "events/trainer.arrow").read_bytes()
    grown = create_run(tmp_path / "grown", command=["x"])
    grown.update(**{k: v for k, v in RunFollower(whole).poll().run.manifest.items() if k != "command"})
    follow = RunFollower(grown.path)
    for end in range(0, len(data) + 1, max(1, len(data) // 9)):
        (grown.events / "trainer.arrow").write_bytes(data[:end])
        follow.poll()
    (grown.events / "trainer.arrow").write_bytes(data)
    many, one = follow.poll(), RunFollower(whole).poll()
    assert many.run.events.astype(str).equals(one.run.events.astype(str))
    assert many.windows.astype(str).equals(one.windows.astype(str))


def test_the_range_is_a_minute_or_as_long_as_a_verdict_needs(tmp_path: Path) -> None:
    fast, slow = RunBuilder(tmp_path / "fast"), RunBuilder(tmp_path / "slow")
    for number in range(200):
        fast.window(number, number * 1.0, 10)
        slow.window(number, number * 20.0, 10)
    for builder, expected_s in ((fast, 60.0), (slow, 20.0 * follower.range_windows)):
        recent = RunFollower(builder.finish("running")).poll()
        assert recent.since_ns is not None
        assert recent.latest_ns is not None
        assert (recent.latest_ns - recent.since_ns) / second_ns == expected_s


def test_what_was_written_once_and_long_ago_is_still_in_force(tmp_path: Path) -> None:
    builder = RunBuilder(tmp_path / "r")
    builder.gauge("prefetch", 0, "depth", 1.0, 4.0, channel="q_pre")
    builder.sample("host", "machine", "mem_limit_bytes", 1.0, 64e9)
    builder.sample("host", "machine", "mem_available_bytes", 1.0, 3e9)
    for number in range(2000):
        builder.window(number, 10.0 + number, 10)
        builder.sample("host", "machine", "mem_available_bytes", 10.0 + number, 5e9)
    recent = RunFollower(builder.finish("running")).poll()
    samples = recent.run.samples.set_index("metric")["value"].astype(float)
    assert samples["mem_limit_bytes"] == 64e9
    assert set(samples["mem_available_bytes"]) == {5e9}, "a value that was replaced is past"
    assert recent.run.events.loc[recent.run.events["name"] == "depth", "value"].tolist() == [4.0]
    assert len(recent.windows) == 400


def test_checkpoints_and_warnings_are_kept_and_thread_ends_are_not_news(tmp_path: Path) -> None:
    builder = RunBuilder(tmp_path / "r")
    builder.mark("trainer", 0, "warning", 1.0, note="[/red] beware")
    builder.span("trainer", 0, "checkpoint", 2.0, 3.0)
    builder.mark("target", 0, "stop", 4.0)
    builder.span("target", 0, "forward", 4.0, 5.0)
    recent = RunFollower(builder.finish("running")).poll()
    assert recent.notes["name"].tolist() == ["warning", "checkpoint"]


def test_a_torn_end_is_news_only_of_a_run_that_is_over(tmp_path: Path) -> None:
    path = play(tmp_path / "r", windows=5)
    events = path / "events/trainer.arrow"
    events.write_bytes(events.read_bytes()[:-40])
    follow = RunFollower(path)
    assert any("end is missing" in told for told in follow.poll().warnings)
    follow._dir.update(status="running")
    assert follow.poll().warnings == ()


def test_a_stream_of_a_stranger_is_named_and_the_rest_is_read(tmp_path: Path) -> None:
    path = play(tmp_path / "r", windows=5)
    log = ArrowLog(path / "samples/zz.arrow", event_schema)
    log.append(tuple([None] * len(event_schema)))
    log.close()
    recent = RunFollower(path).poll()
    assert len(recent.windows) == 5
    assert any("samples/zz.arrow" in told for told in recent.warnings)
