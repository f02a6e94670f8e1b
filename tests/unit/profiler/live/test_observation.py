"""The view says what the recent range holds: shares that add up, depths, pace, verdict, n/a with why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from profiler.live.follower import RunFollower
from profiler.live.observation import judge, observe
from profiler.live.view import LiveView, Number
from profiler.run_status import RunStatus
from tests.gil_samples import add_gil
from tests.played_pipeline import Play, play
from tests.run_builder import RunBuilder, nanoseconds


def view_of(path: Path, now_s: float | None = None, **settings: Any) -> LiveView:
    recent = RunFollower(path).poll()
    manifest = recent.run.manifest
    status = RunStatus(str(manifest["status"]), manifest["reason"])
    now_ns = None if now_s is None else nanoseconds(now_s) + 300_000_000
    return observe(recent, judge(recent), settings.pop("status", status), now_ns=now_ns, **settings)


def running(path: Path, build: Any, **manifest: Any) -> Path:
    builder = RunBuilder(path, Play().config)
    build(builder)
    return builder.finish("running", **manifest)


@pytest.mark.parametrize(
    ("settings", "cause", "mood"),
    [
        ({}, "target-bound-healthy", "healthy"),
        ({"preset": "host", "target_copy_s": 0.6}, "sync-d2h-on-critical-path", "sick"),
        ({"backward_s": 1.5}, "drafter-too-slow", "sick"),
        ({"windows": 6}, "not-enough-data", "unknown"),
    ],
)
def test_the_verdict_is_that_of_the_rules(
    tmp_path: Path, settings: dict[str, Any], cause: str, mood: str
) -> None:
    verdict = view_of(play(tmp_path / "r", **settings)).verdict
    assert (verdict.cause, verdict.mood) == (cause, mood)
    assert verdict.headline


def test_shares_of_every_thread_add_up_and_name_whom_it_waits_for(tmp_path: Path) -> None:
    view = view_of(play(tmp_path / "r", backward_s=1.5))
    assert [f"{row.stage} {row.index}" for row in view.stages] == [
        "prefetch 0", "target 0", "target 1", "target 2", "drafter 0",
    ]  # fmt: skip
    for row in view.stages:
        if not row.ended:
            total = row.work + row.copy + sum(wait.share for wait in row.waits) + row.open + row.rest
            assert total == pytest.approx(1.0, abs=0.01)
    target = view.stages[1]
    assert (target.waits[0].on, target.waits[0].name) == ("drafters", "put q_hs")
    assert target.waits[0].share > 0.3


def test_waits_for_the_gil_are_waits_and_no_work(tmp_path: Path) -> None:
    plain = view_of(play(tmp_path / "plain"))
    view = view_of(add_gil(play(tmp_path / "gil"), {300: 0.4, 301: 0.0}))
    before, waiting, free = plain.stages[1], view.stages[1], view.stages[2]
    assert [(wait.on, wait.name) for wait in waiting.waits if wait.name == "gil_wait"] == [
        ("the GIL", "gil_wait")
    ]
    assert next(wait.share for wait in waiting.waits if wait.name == "gil_wait") == pytest.approx(
        0.4, abs=0.02
    )
    assert waiting.work == pytest.approx(before.work - 0.4, abs=0.02)
    sums = [row.work + sum(wait.share for wait in row.waits) + row.open + row.rest for row in (waiting, free)]
    assert sums[0] == pytest.approx(sums[1], abs=0.01)
    assert not any(wait.name == "gil_wait" for wait in free.waits)


def test_queues_stand_in_the_order_of_the_data_with_their_places(tmp_path: Path) -> None:
    view = view_of(play(tmp_path / "r", backward_s=1.5, targets=2, drafters=2, depth=3))
    assert [(row.name, row.capacity.value) for row in view.queues] == [
        ("q_pre", 8),
        ("q_hs.0", 3),
        ("q_hs.1", 3),
    ]
    assert all(0 <= row.depth <= (row.capacity.value or 0) for row in view.queues)


def test_a_trainer_of_others_tells_the_places_of_its_queues_itself(tmp_path: Path) -> None:
    builder = RunBuilder(tmp_path / "r")
    builder.gauge("target", 0, "capacity", 0.0, 4, channel="q_hs")
    builder.gauge("target", 0, "depth", 0.0, 2, channel="q_hs")
    builder.gauge("target", 0, "depth", 0.0, 1, channel="log")
    builder.span("target", 0, "forward", 0.0, 400.0)
    for number in range(20):
        builder.window(number, 20.0 * number, 100)
    known, unknown = sorted(
        view_of(builder.finish("running"), 400.0).queues, key=lambda row: row.name != "q_hs"
    )
    assert known.capacity == Number(4)
    assert known.full_share == 0.0
    assert (unknown.capacity.value, unknown.full_share) == (None, None)


def test_time_before_the_first_stage_began_is_nobodys(tmp_path: Path) -> None:
    def build(builder: RunBuilder) -> None:
        for number in range(5):
            builder.window(number, 11.0 + number, 100)
            builder.span("target", 0, "forward", 10.0 + number, 11.0 + number)

    view = view_of(running(tmp_path / "r", build), 15.0)
    assert view.range_s == pytest.approx((10.0, 15.0))
    assert view.stages[0].work == pytest.approx(1.0)


def test_the_pace_has_an_interval_from_ten_windows_on_and_a_reason_before(tmp_path: Path) -> None:
    few, many = view_of(play(tmp_path / "few", windows=6)).pace, view_of(play(tmp_path / "many")).pace
    assert few.tokens_per_s.value is not None
    assert (few.low, few.interval_reason) == (None, "5 of 10 windows, so no interval yet")
    assert many.low is not None
    assert many.high is not None
    assert many.tokens_per_s.value is not None
    assert many.low <= many.tokens_per_s.value <= many.high
    assert len(many.series) == 39
    assert many.step == 40


def test_without_two_windows_there_is_no_pace_but_why(tmp_path: Path) -> None:
    none = view_of(running(tmp_path / "a", lambda b: b.span("target", 0, "forward", 0, 1)), 2.0)
    assert none.pace.tokens_per_s == Number(None, "no window has ended yet")
    assert "No window has ended yet" in none.verdict.headline
    one = view_of(running(tmp_path / "b", lambda b: b.window(0, 1.0, 10)), 2.0)
    assert one.pace.tokens_per_s == Number(None, "one window has ended; a rate needs two")


def build_windows(builder: RunBuilder) -> None:
    for number in range(20):
        builder.window(number, 1.0 + number, 100)
        builder.span("target", 0, "forward", number, number + 1)


def test_a_run_that_stands_still_says_for_how_long_and_who(tmp_path: Path) -> None:
    path = running(tmp_path / "r", build_windows)
    assert view_of(path, 30.0).verdict.mood != "stalled"
    still = view_of(path, 65.0).verdict
    assert still.mood == "stalled"
    assert "45 s" in still.headline
    assert "target 0 for 45 s" in still.why


def test_time_after_the_last_span_is_open_until_the_next_one_ends(tmp_path: Path) -> None:
    [target] = view_of(running(tmp_path / "r", build_windows), 40.0).stages
    assert target.open == pytest.approx(20 / 40, abs=0.02)
    assert target.quiet_s == pytest.approx(20.0, abs=0.1)
    assert target.rest == pytest.approx(0.0, abs=0.01)


@pytest.mark.parametrize(
    ("status", "finishing", "over"),
    [
        ("running", False, False),
        ("unknown", False, False),  # on another machine, whose disk this one may see
        ("finished", True, False),
        ("finished", False, True),
        ("stopped", False, True),
        ("failed", False, True),
    ],
)
def test_a_run_is_over_once_nobody_writes_any_more(
    tmp_path: Path, status: str, finishing: bool, over: bool
) -> None:
    path = running(tmp_path / "r", build_windows)
    state = view_of(path, status=RunStatus(status, "why"), finishing=finishing).run
    assert (state.status, state.reason, state.over) == (status, "why", over)


def test_a_failed_run_says_why_first(tmp_path: Path) -> None:
    builder = RunBuilder(tmp_path / "r")
    build_windows(builder)
    verdict = view_of(builder.finish("failed", reason="CUDA out of memory")).verdict
    assert verdict.mood == "failed"
    assert "CUDA out of memory" in verdict.headline


def test_gpus_have_their_roles_and_missing_metrics_their_reasons(tmp_path: Path) -> None:
    def build(builder: RunBuilder) -> None:
        for metric, value in (("util_pct", 98.0), ("power_w", 512.0), ("power_limit_w", 700.0)):
            builder.sample("gpu", "GPU-a", metric, 1.0, value)
        builder.sample("gpu", "GPU-a", "sm_active_pct", 1.0, None, "the card has no GPM")
        builder.sample("gpu", "GPU-b", "util_pct", 1.0, 0.0)

    devices = [
        {"name": "cuda:0", "role": "target", "index": 0, "uuid": "GPU-a"},
        {"name": "cuda:0", "role": "drafter", "index": 0, "uuid": "GPU-a"},
    ]
    hardware = {"gpus": [{"uuid": "GPU-b", "name": "H200"}, {"uuid": "GPU-a", "name": "H200"}]}
    view = view_of(running(tmp_path / "r", build, devices=devices, hardware=hardware))
    first, second = view.gpus
    assert (first.name, first.role, second.name, second.role) == (
        "cuda:0",
        "target 0 + drafter 0",
        "H200",
        "not used",
    )
    assert (first.util.value, first.power_w.value, first.power_limit_w.value) == (0.98, 512.0, 700.0)
    assert first.sm_active == Number(None, "the card has no GPM")
    assert "mem_used_bytes" in str(first.memory_bytes.reason)
    assert second.util.value == 0.0
    assert view.gpus_reason is None


def test_without_gpus_the_reason_of_the_recorder_is_told(tmp_path: Path) -> None:
    view = view_of(running(tmp_path / "r", build_windows, hardware={"gpus": [], "no_gpus": "no driver"}))
    assert (view.gpus, view.gpus_reason) == ((), "no driver")
    assert "no gpu sampler" in str(view_of(running(tmp_path / "s", build_windows)).gpus_reason)


def test_threads_are_sorted_by_their_wait_for_the_gil_and_named_by_stage(tmp_path: Path) -> None:
    def build(builder: RunBuilder) -> None:
        build_windows(builder)
        for second in range(21):
            builder.sample("host", "tree", "cpu_s", second, 1.0)
            for key, rate in (("300:python", 0.1), ("77:python", 0.9)):
                builder.sample("host", key, "thread_cpu_s", second, second * rate)
            builder.sample("gil_wait", "*", "gil_sweeps", second, second * 100.0)
            builder.sample("gil_wait", "300:python", "gil_wait_samples", second, second * 50.0)
            builder.sample("gil_wait", "77:python", "gil_wait_samples", second, second * 5.0)

    rows = view_of(running(tmp_path / "r", build)).threads
    assert [row.name for row in rows] == ["target 0", "python 77"]
    assert rows[0].gil_wait.value == pytest.approx(0.5, abs=0.02)
    assert rows[1].cpu.value == pytest.approx(0.9, abs=0.02)
    assert rows[0].gil_hold.value is None
    assert rows[0].gil_hold.reason


def test_memory_stands_against_its_limit(tmp_path: Path) -> None:
    def build(builder: RunBuilder) -> None:
        builder.sample("host", "tree", "rss_anon_bytes", 1.0, 8e9)
        builder.sample("host", "tree", "rss_shmem_bytes", 1.0, 2e9)
        builder.sample("host", "machine", "mem_limit_bytes", 1.0, 64e9)

    memory = view_of(running(tmp_path / "r", build)).memory
    assert memory.resident_bytes == 10e9
    assert memory.limit_bytes.value == 64e9
    assert memory.available_bytes.value is None


def test_the_journal_holds_warnings_and_the_last_windows(tmp_path: Path) -> None:
    def build(builder: RunBuilder) -> None:
        builder.mark("trainer", 0, "warning", 0.5, note="[/bold] [red]x")
        build_windows(builder)
        builder.span("trainer", 0, "checkpoint", 20.0, 22.5)

    rows = view_of(running(tmp_path / "r", build)).journal
    assert [row.kind for row in rows] == ["warning", "window", "window", "window", "checkpoint"]
    assert rows[0].text == "[/bold] [red]x"
    assert "2.5 s" in rows[-1].text


@pytest.mark.parametrize(
    "manifest",
    [
        {"devices": [3, {"name": None}], "hardware": {"gpus": [None, {"uuid": 5}]}, "warnings": 7},
        {"hardware": [], "pids": [], "config": {"transport.depth": "many"}, "command": None},
    ],
)
def test_a_strange_manifest_does_no_harm(tmp_path: Path, manifest: dict[str, Any]) -> None:
    document = view_of(running(tmp_path / "r", build_windows, **manifest), 30.0).to_json()
    json.dumps(document, allow_nan=False)


@pytest.mark.parametrize("note", ["nonsense", "[1]", '{"loss": "high"}', '{"loss": NaN}'])
def test_a_strange_note_gives_no_loss(tmp_path: Path, note: str) -> None:
    def build(builder: RunBuilder) -> None:
        for number in range(3):
            builder.mark("trainer", 0, "window", 1.0 + number, window=number, tokens=5, note=note)

    view = view_of(running(tmp_path / "r", build))
    assert view.pace.loss is None
    json.dumps(view.to_json(), allow_nan=False)
