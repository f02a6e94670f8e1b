"""kill -9 of trainer or recorder at any moment: the run opens, hardly an event is lost, nobody is left.

`pytest --kills=200 tests/integration/test_kill_anytime.py` kills more often than the suite does.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

import psutil
import pytest

from dflash.contract.errors import RunError
from dflash.contract.events import event_schema
from dflash.contract.rundir import RunDir
from profiler.live.stream import StreamTail
from profiler.run import Run
from profiler.run_status import effective_status
from profiler.timeline import Timeline
from tests.data.programs.recording import record_source

patience_s = 60.0
at_once = 6
wanted_loss_s = 0.5
starved_loss_s = 5.0  # what a crowded machine may make of it now and then

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]  # for more kills than the suite makes


@dataclass(frozen=True)
class Killed:
    """What one kill left."""

    number: int
    victim: str
    run_path: Path
    when: str  # started | opened (the events' file) | emitting (it holds events)

    @property
    def is_begun(self) -> bool:
        """Whether there was a run before the kill; a recorder may be killed before it makes one."""
        return self.victim == "trainer" or self.when != "started"


@pytest.fixture(scope="module")
def kills(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("--kills"))


@pytest.fixture(scope="module")
def killed(kills: int, tmp_path_factory: pytest.TempPathFactory) -> list[Killed]:
    """All kills, made once for all tests of this page; their moments are drawn from a seed."""
    base = tmp_path_factory.mktemp("kills")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.data.programs.recording"])
    draws = random.Random(20)
    plans = [(number, "trainer" if number % 2 else "recorder", draws.random()) for number in range(kills)]
    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(lambda plan: kill_one(context, base, *plan), plans))


def kill_one(
    context: multiprocessing.context.ForkServerContext, base: Path, number: int, victim: str, draw: float
) -> Killed:
    """Start a recording, kill one side of it at a random moment, and wait for the other side's end."""
    path = base / f"run-{number}"
    when = ("started", "started", "started", "opened", "opened", "emitting", "emitting", "emitting")[
        number % 8
    ]
    process = context.Process(target=record_source, args=(path, Path(__file__).parents[2]))
    process.start()
    try:
        kill(process, path, when, victim, draw)
        process.join(patience_s)
    finally:
        process.kill()  # nothing happens to one that has ended
    assert process.exitcode == (-signal.SIGKILL if victim == "recorder" else 128 + signal.SIGKILL)
    wait_until(lambda: not goes_on(path), "the trainer outlives its recorder")
    return Killed(number, victim, path, when)


def goes_on(path: Path) -> bool:
    run = RunDir(path)
    return run.manifest_path.exists() and effective_status(run.manifest()).status == "running"


def kill(process: BaseProcess, path: Path, when: str, victim: str, draw: float) -> None:
    """Kill the recorder, which is `process`, or its trainer, at a moment from `when` on."""
    assert process.pid is not None
    pid = process.pid if victim == "recorder" else wait_for_trainer(path)
    if when != "started":
        wait_until(lambda: any((path / "events").glob("*.arrow")), "no trainer opens a file")
    if when == "emitting":
        (file,) = (path / "events").glob("*.arrow")
        tail = StreamTail(file, event_schema, "events")
        wait_until(lambda: len(tail.read_new()) > 0, "no trainer emits")
    time.sleep(0.7 * draw)
    os.kill(pid, signal.SIGKILL)


def wait_for_trainer(path: Path) -> int:
    """Its pid as soon as it is on record: the command may still stand at the gate."""

    def pid() -> int | None:
        try:
            found: int | None = RunDir(path).manifest()["pids"]["trainer"]
        except RunError:
            return None
        return found

    wait_until(lambda: pid() is not None, "no trainer was started")
    return pid() or 0


def wait_until(happened: Callable[[], bool], otherwise: str) -> None:
    until_s = time.monotonic() + patience_s
    while not happened():
        assert time.monotonic() < until_s, otherwise
        time.sleep(0.005)


def left_of(path: Path) -> list[str]:
    """Command lines of living processes that belong to the run at `path`."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        line = process.info["cmdline"] or []
        if str(path) in line and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(" ".join(line))
    return found


def opened(killed: list[Killed]) -> list[tuple[Killed, Run]]:
    """Runs that had begun."""
    return [
        (kill, Run.open(kill.run_path)) for kill in killed if RunDir(kill.run_path).manifest_path.exists()
    ]


def test_every_run_opens_and_says_what_happened(killed: list[Killed]) -> None:
    runs = opened(killed)
    assert {kill for kill in killed if kill.is_begun} <= {kill for kill, _ in runs}
    for kill, run in runs:
        status = run.status
        assert status.status == "failed", kill
        assert status.reason is not None
        said = {
            "recorder": ("the recorder was killed", "the process that made the run was killed"),
            "trainer": ("killed by SIGKILL",),
        }[kill.victim]
        assert status.reason.startswith(said), kill
        assert f"the run failed: {status.reason}" in Timeline.of(run).warnings, kill


def test_hardly_an_event_is_lost(killed: list[Killed]) -> None:
    lost_s = []
    for kill, run in opened(killed):
        if len(run.events):  # none: killed within the first quarter of a second of its life
            emitted_ns = int.from_bytes((kill.run_path / "emitted").read_bytes(), sys.byteorder)
            counted = run.events["value"].to_numpy()
            assert (counted == range(len(counted))).all(), kill  # nothing is missing before the end
            # Not up to the kill: where the machine stood still, nothing was emitted that could be lost.
            lost_s.append((emitted_ns - int(run.events["t_ns"].iloc[-1])) / 1e9)
    assert len(lost_s) >= sum(kill.when == "emitting" for kill in killed)
    within = sum(lost <= wanted_loss_s for lost in lost_s) / len(lost_s)
    print(f"{len(lost_s)} runs with events, lost at most {max(lost_s):.3f} s, {within:.0%} within 0.5 s")
    assert within >= 0.9
    assert max(lost_s) <= starved_loss_s


def test_nobody_is_left_behind(killed: list[Killed]) -> None:
    until_s = time.monotonic() + patience_s
    while (
        left := [line for kill in killed for line in left_of(kill.run_path)]
    ) and time.monotonic() < until_s:
        time.sleep(0.1)
    assert left == []
