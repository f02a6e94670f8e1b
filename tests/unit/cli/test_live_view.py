"""The screen shows a run's numbers, follows its growth and the terminal's size, and leaves it alone."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from textual.pilot import Pilot

from cli.live_view import LiveApp, LivePanel
from cli.live_watch import Watch
from dflash.contract.events import open_events
from dflash.contract.rundir import RunDir
from tests.played_pipeline import Play, play
from tests.run_builder import RunBuilder, nanoseconds

Steps = Callable[[LiveApp, Pilot[None]], Awaitable[None]]


def drive(path: Path, steps: Steps, size: tuple[int, int] = (140, 50)) -> LiveApp:
    """Run the app without a terminal, and `steps` once it has drawn the run."""

    async def go() -> LiveApp:
        app = LiveApp(Watch(path))
        async with app.run_test(size=size) as pilot:
            await until(pilot, lambda: app.view is not None or app.trouble is not None)
            await pilot.pause()
            await steps(app, pilot)
        return app

    return asyncio.run(go())


async def until(pilot: Pilot[None], holds: Callable[[], bool]) -> None:
    for _ in range(600):
        if holds():
            return
        await pilot.pause(0.05)
    raise AssertionError("it did not come to that")


def shown(app: LiveApp) -> str:
    """What stands on the screen, as text."""
    rows = app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in row) for row in rows)


def live_run(path: Path, windows: int = 20, device: str = "cuda:0") -> RunBuilder:
    builder = RunBuilder(path, Play().config)
    for number in range(windows):
        builder.span("target", 0, "forward", number, number + 0.9, tokens=5000, device=device)
        builder.window(number, number + 1.0, 5000, loss=2.5)
    return builder


def test_it_shows_verdict_numbers_and_queues(tmp_path: Path) -> None:
    async def steps(app: LiveApp, pilot: Pilot[None]) -> None:
        text = shown(app)
        assert "Ktok/s" in text
        assert "target 2" in text
        assert "q_hs" in text
        assert "drafter 0" in text
        assert "Healthy" in text

    drive(play(tmp_path / "r", windows=20), steps)


@pytest.mark.parametrize("width", [140, 120, 80, 60, 40])
def test_at_every_width_the_panels_use_it_and_stay_inside(tmp_path: Path, width: int) -> None:
    async def steps(app: LiveApp, pilot: Pilot[None]) -> None:
        for panel in app.query(LivePanel):
            assert panel.region.right <= width
        sides = app.query_one("#left").region, app.query_one("#right").region
        assert (sides[0].y == sides[1].y) is (width >= 120)

    path = live_run(tmp_path / "r").finish("running")
    drive(path, steps, size=(width, 50))


def test_it_follows_the_terminals_size(tmp_path: Path) -> None:
    async def steps(app: LiveApp, pilot: Pilot[None]) -> None:
        assert app.query_one("#right").region.x > 0
        await pilot.resize_terminal(60, 40)
        await pilot.pause()
        assert app.query_one("#right").region.x == 0
        assert all(len(line) <= 60 for line in shown(app).splitlines())
        await pilot.resize_terminal(130, 40)
        await pilot.pause()
        assert app.query_one("#right").region.x > 0

    drive(live_run(tmp_path / "r").finish("running"), steps)


def test_new_numbers_appear_while_the_run_grows(tmp_path: Path) -> None:
    path = live_run(tmp_path / "r", windows=10).finish("running")

    async def steps(app: LiveApp, pilot: Pilot[None]) -> None:
        assert "step 10" in shown(app)
        log, probe = open_events(path / "events/trainer-2.arrow")
        for number in range(10, 30):
            probe.mark("window", t_ns=nanoseconds(number + 1.0), window=number, tokens=5000)
        log.close()
        await until(pilot, lambda: app.view is not None and app.view.pace.step == 30)
        await pilot.pause()
        assert "step 30" in shown(app)

    drive(path, steps)


@pytest.mark.parametrize("key", ["q", "ctrl+c"])
def test_a_key_leaves_and_the_run_is_untouched(tmp_path: Path, key: str) -> None:
    path = live_run(tmp_path / "r").finish("running")
    before = {p: p.stat().st_mtime_ns for p in path.rglob("*")}

    async def steps(app: LiveApp, pilot: Pilot[None]) -> None:
        assert "the trainer goes on" in shown(app)
        await pilot.press(key)
        await until(pilot, lambda: not app.is_running)

    app = drive(path, steps)
    assert app.conclusion is None
    assert {p: p.stat().st_mtime_ns for p in path.rglob("*")} == before


def test_when_the_run_ends_the_report_is_written_and_named(tmp_path: Path) -> None:
    path = live_run(tmp_path / "r").finish("running")

    async def steps(app: LiveApp, pilot: Pilot[None]) -> None:
        assert app.conclusion is None
        RunDir(path).update(status="finished")
        await until(pilot, lambda: "report.html" in shown(app).replace("\n", ""))
        assert "finished" in shown(app)

    app = drive(path, steps)
    assert app.conclusion is not None
    assert app.conclusion.report == path / "report.html"
    assert (path / "report.html").exists()


def test_markup_in_names_is_text(tmp_path: Path) -> None:
    path = tmp_path / "[bold]r[x]"
    builder = live_run(path, device="[/red][a=1]")
    builder.mark("trainer", 0, "warning", 3.0, note="[/bold] [link=x]list[str]")

    async def steps(app: LiveApp, pilot: Pilot[None]) -> None:
        text = shown(app)
        assert "[/bold] [link=x]list[str]" in text
        assert "[/red][a=" in text
        assert "[bold]r[x]" in text

    drive(builder.finish("running"), steps, size=(160, 60))


def test_a_run_that_vanishes_ends_the_view_with_the_reason(tmp_path: Path) -> None:
    path = live_run(tmp_path / "r").finish("running")

    async def steps(app: LiveApp, pilot: Pilot[None]) -> None:
        shutil.rmtree(path)
        await until(pilot, lambda: app.trouble is not None)

    app = drive(path, steps)
    assert "run.json" in str(app.trouble)
