from __future__ import annotations

from pathlib import Path

import pytest

from profiler.capacity import Capacities
from profiler.run import Run
from profiler.timeline import Timeline
from reports.pipeline_map import NoteCard, QueueCard, StageCard
from reports.run_map import map_run
from tests.played_pipeline import Play
from tests.run_builder import RunBuilder

limits_target = Capacities(
    prefetch_alone=None,
    targets_alone=10.0,
    drafters_alone=20.0,
    allowed_tokens_per_s=10.0,
    limit="target",
    pipeline_efficiency=0.5,
)


@pytest.fixture(scope="module")
def timeline(tmp_path_factory: pytest.TempPathFactory) -> Timeline:
    """Twelve seconds: a target works 50 %, copies 25 %, waits for drafters 25 %; its drafter mostly waits."""
    config = Play(targets=1, drafters=2, preset="shared").config
    builder = RunBuilder(tmp_path_factory.mktemp("runs") / "run", config)
    for w in range(13):
        at = float(w)
        builder.span("target", 0, "forward", at, at + 0.5, tokens=1000, batch=w)
        builder.span(
            "target", 0, "copy", at + 0.5, at + 0.75, path="pageable", bytes=100_000_000, src="a", dst="b"
        )
        builder.span("target", 0, "put", at + 0.75, at + 1, channel="q_hs")
        for drafter in range(2):
            builder.span("drafter", drafter, "get", at, at + 0.9, channel="q_hs")
            builder.span("drafter", drafter, "backward", at + 0.9, at + 1, tokens=500, batch=w)
            builder.mark("drafter", drafter, "take", at + 0.9, bytes=100, note="away" if drafter else "home")
        builder.gauge("target", 0, "depth", at, 2.0, channel="q_hs")
        builder.gauge("drafter", 0, "depth", at + 0.75, 0.0, channel="q_hs")
        builder.window(w, at + 1, 1000)
    return Timeline.of(Run.open(builder.finish()))


def plain(lines: tuple[tuple[str, str], ...]) -> dict[str, str]:
    return {what.strip(): how_much.replace("\u00a0", " ") for what, how_much in lines}


def test_stages_say_what_they_did_and_whom_they_waited_for(timeline: Timeline) -> None:
    prefetch, q_pre, targets, _, _, drafters, _ = map_run(timeline, limits_target).columns
    assert (prefetch, q_pre) == ((), ())
    (target,) = targets
    assert isinstance(target, StageCard)
    assert target.limits
    assert target.shares["work"] == pytest.approx(0.5)
    assert target.shares["copy"] == pytest.approx(0.25)
    assert plain(target.lines) == {
        "busy": "50 % · 6.00 s",
        "copies": "25 % · 3.00 s",
        "waits: drafters": "25 % · 3.00 s",
    }
    for drafter in drafters:
        assert isinstance(drafter, StageCard)
        assert not drafter.limits
        assert plain(drafter.lines)["waits: targets"] == "90 % · 10.8 s"


def test_a_stage_in_time_is_the_whole_of_its_bar(timeline: Timeline) -> None:
    for column in map_run(timeline, limits_target).columns:
        for card in column:
            if isinstance(card, StageCard):
                assert sum(card.shares.values()) == pytest.approx(1.0)


def test_queues_are_weighted_by_time(timeline: Timeline) -> None:
    (queue,) = map_run(timeline, limits_target).columns[4]
    assert isinstance(queue, QueueCard)
    assert queue.mean_depth == pytest.approx(1.5)
    assert queue.capacity == 2
    assert queue.full_share == pytest.approx(0.75)
    assert queue.fill == pytest.approx(0.75)


def test_the_transport_says_path_bytes_rate_and_takes_from_elsewhere(timeline: Timeline) -> None:
    (transport,) = map_run(timeline, limits_target).columns[3]
    assert isinstance(transport, NoteCard)
    lines = plain(transport.lines)
    assert lines["queue"] == "shared"
    assert lines["pageable"] == "1.20 GB"
    assert lines["at"] == "400 MB/s"
    assert lines["on targets"] == "3.00 s"
    assert lines["taken away"] == "50 %"


def test_unknown_bytes_are_not_zero(tmp_path: Path) -> None:
    builder = RunBuilder(tmp_path / "run", Play().config)
    builder.span("target", 0, "copy", 0, 1, path="pinned")
    timeline = Timeline.of(Run.open(builder.finish()))
    (transport,) = map_run(timeline, limits_target).columns[3]
    assert isinstance(transport, NoteCard)
    assert plain(transport.lines)["pinned"] == "n/a"
    assert plain(transport.lines)["at"] == "n/a"


def test_a_wait_that_is_no_news_is_not_listed(tmp_path: Path) -> None:
    builder = RunBuilder(tmp_path / "run", Play().config)
    builder.span("target", 0, "get", 0, 0.001, channel="q_pre")
    builder.span("target", 0, "forward", 0.001, 0.9, tokens=10, batch=0)
    builder.span("target", 0, "put", 0.9, 1.0, channel="q_hs")
    columns = map_run(Timeline.of(Run.open(builder.finish())), limits_target).columns
    (target,) = columns[2]
    assert isinstance(target, StageCard)
    assert set(plain(target.lines)) == {"busy", "waits: drafters"}
