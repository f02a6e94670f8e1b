"""Panels fit their width, need no colour, and show a run's own words whole and harmless."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cli.live_panels import draw_head, draw_pipeline, fold, panels, safe
from cli.live_style import bar, gauge, sparkline
from cli.live_text import live_line, live_verdict, snapshot
from profiler.live.follower import RunFollower
from profiler.live.observation import judge, observe
from profiler.live.view import GpuRow, LiveView, Number, ThreadRow
from profiler.run_status import RunStatus
from tests.played_pipeline import Play, play
from tests.run_builder import RunBuilder

hostile = "[/bold] [red]x[/red] list[str] [a=1] \x1b[31m\r\n\u202eevil <b> $HOME"


def view_of(path: Path) -> LiveView:
    recent = RunFollower(path).poll()
    return observe(
        recent, judge(recent), RunStatus(recent.run.manifest["status"], recent.run.manifest["reason"])
    )


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> LiveView:
    path = tmp_path_factory.mktemp("played") / "r"
    return view_of(play(path, preset="host", target_copy_s=0.6, drafters=2, depth=20))


@pytest.fixture
def strange(tmp_path: Path) -> LiveView:
    """A run in which every name is an attack on the terminal or on markup."""
    builder = RunBuilder(tmp_path / "[red]run[/x]", Play().config)
    for number in range(20):
        builder.span("target", 0, "forward", number, number + 0.9, device=hostile)
        builder.window(number, number + 1.0, 10)
    builder.gauge("target", 0, "depth", 1.0, 1.0, channel=hostile)
    builder.mark("trainer", 0, "warning", 3.0, note=hostile)
    builder.sample("host", f"77:{hostile}", "thread_cpu_s", 1.0, 1.0)
    builder.sample("gpu", "GPU-a", "util_pct", 1.0, None, hostile)
    for second in range(1, 20):
        builder.sample("host", "tree", "cpu_s", second, 1.0)
    devices = [{"name": hostile, "role": hostile, "index": 0, "uuid": "GPU-a"}]
    return view_of(builder.finish("failed", reason=hostile, devices=devices, warnings=[hostile]))


@pytest.mark.parametrize("width", [36, 56, 76, 118, 200])
@pytest.mark.parametrize("name", [name for name, _, _ in panels])
def test_no_panel_is_wider_than_it_may_be(busy: LiveView, name: str, width: int) -> None:
    draw = next(draw for n, _, draw in panels if n == name)
    for line in draw(full(busy), width).plain.split("\n"):
        assert len(line.rstrip()) <= width, line


@pytest.mark.parametrize("name", [name for name, _, _ in panels])
def test_a_runs_own_words_are_shown_and_do_nothing(strange: LiveView, name: str) -> None:
    draw = next(draw for n, _, draw in panels if n == name)
    shown = draw(strange, 200).plain
    assert "\x1b" not in shown
    assert "\r" not in shown
    assert "\u202e" not in shown
    if name in ("verdict", "gpus", "journal"):
        assert "[/bold] [red]x[/red] list[str] [a=1] \\x1b[31m" in shown


def test_the_head_shows_the_whole_path(strange: LiveView) -> None:
    assert "[red]run[/x]" in draw_head(strange, 300).plain
    assert "[red]run[/x]" in snapshot(strange, 100)


def test_plain_lines_hold_no_control_characters(strange: LiveView) -> None:
    for line in (live_line(strange), live_verdict(strange)):
        assert line.isprintable()


def test_the_line_is_the_trainers_own_style(busy: LiveView) -> None:
    line = live_line(busy)
    assert line.startswith("q_pre=0/8 q_hs=0/20 step 40 ")
    assert "Ktok/s (" in line
    assert line.endswith(f"[{busy.verdict.cause}]")


def test_queues_of_one_kind_stand_together(tmp_path: Path) -> None:
    assert "q_hs=[0 0]/2" in live_line(view_of(play(tmp_path / "r", drafters=2, backward_s=1.5)))


def test_what_is_unknown_is_na_with_its_reason_and_never_zero(tmp_path: Path) -> None:
    builder = RunBuilder(tmp_path / "r")
    builder.span("target", 0, "forward", 0, 1)
    shown = snapshot(view_of(builder.finish("running")), 100)
    assert "n/a: no window has ended yet" in shown
    assert "GPUs n/a: no gpu sampler records this run" in shown
    assert "host memory n/a: no host sampler records this run" in shown
    assert "0 tok/s" not in shown
    assert "n/a Ktok/s" in live_line(view_of(tmp_path / "r"))


def test_kinds_of_time_differ_without_colour(busy: LiveView) -> None:
    shown = draw_pipeline(busy, 118).plain
    assert "██" in shown
    assert "▓▓" in shown
    assert "░░" in shown
    assert "copy" in shown
    assert "▶target 0" in shown or "▶drafter 0" in shown


@pytest.mark.parametrize("width", [1, 7, 40])
def test_a_bar_is_as_wide_as_it_should_be(width: int) -> None:
    assert len(bar([("work", 0.5), ("wait", 0.499)], width).plain) == width
    assert len(bar([("work", 0.9), ("copy", 0.9)], width).plain) == width
    assert bar([("work", 1.0)], width).plain == "█" * width


@pytest.mark.parametrize(
    ("depth", "capacity", "shown"),
    [
        (1, 2, "■□      "),
        (0, 4, "□□□□    "),
        (60, 60, "■■■■■■■■"),
        (1, 60, "■□□□□□□□"),
        (3, None, "■■■     "),
        (9, 4, "■■■■    "),
    ],
)
def test_a_gauge_has_a_box_for_every_place_or_is_to_scale(
    depth: int, capacity: float | None, shown: str
) -> None:
    assert gauge(depth, capacity, 8).plain == shown


@pytest.mark.parametrize(
    ("values", "width", "shown"),
    [([], 5, ""), ([0.0, 0.0], 5, "▁▁"), ([1.0, 2.0], 5, "▅█"), ([1.0] * 100, 4, "████"), ([1.0], 0, "")],
)
def test_a_sparkline_stands_on_zero(values: list[float], width: int, shown: str) -> None:
    assert sparkline(values, width) == shown


def test_numbers_stay_with_their_units() -> None:
    assert fold("lost 34 % of it", 7) == ["lost", "34 % of", "it"]


def test_safe_keeps_words_and_takes_their_teeth() -> None:
    assert safe("a\x1b[2Jb\tc\nd") == "a\\x1b[2Jb c d"


def full(view: LiveView) -> LiveView:
    """The view of a machine with eight GPUs and many threads."""
    known, unknown = Number(0.9), Number(None, "this card does not say")
    gpus = tuple(
        GpuRow(
            name=f"cuda:{index}",
            uuid=f"GPU-{index}",
            role=f"target {index}" if index else "target 0 + drafter 0",
            util=known,
            sm_active=unknown,
            power_w=Number(400.0),
            power_limit_w=Number(700.0),
            memory_bytes=Number(81e9),
            memory_total_bytes=Number(141e9),
            temperature_c=Number(64.0),
        )
        for index in range(8)
    )
    threads = tuple(
        ThreadRow(name=f"pt_autograd_{n} 123456", cpu=known, gil_wait=known, cpu_wait=known, gil_hold=unknown)
        for n in range(12)
    )
    return replace(view, gpus=gpus, gpus_reason=None, threads=threads, threads_reason=None)


def test_eight_gpus_get_a_row_each_and_a_missing_metric_one_reason(busy: LiveView) -> None:
    shown = snapshot(full(busy), 100)
    assert all(f"cuda:{index}" in shown for index in range(8))
    assert shown.count("400/700 W") == shown.count("81/141 GB") == 8
    assert shown.count("sm act n/a: this card does not say") == 1
    assert "and 4 more" in shown


def test_holders_of_the_gil_have_a_column_only_where_somebody_asked_for_them(busy: LiveView) -> None:
    view = full(busy)
    assert "gil held" in snapshot(view, 100)
    off = Number(None, "switched off: ask on the spot")
    without = replace(view, threads=tuple(replace(row, gil_hold=off) for row in view.threads))
    shown = snapshot(without, 100)
    assert "gil held" not in shown
    assert "switched off" not in shown
    assert "gil wait" in shown
