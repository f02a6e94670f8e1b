"""Trackers are fed without making anybody wait, and their troubles are theirs: one warning each.

A tracker here is a small program that writes down what it is told.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from dflash.contract.errors import DeviceError
from dflash.contract.events import Probe
from dflash.trackers import feed as feed_module
from dflash.trackers.feed import TrackerFeed, check_trackers

writes_down = """
import sys
with open(sys.argv[0] + '.told', 'w') as out:
    for line in sys.stdin:
        out.write(line)
        out.flush()
"""
fails = "import sys; sys.stdin.readline(); sys.exit('no such project')"
fails_at_once = "raise SystemExit('cannot be imported')"
stuck = "import time; time.sleep(600)"
stuck_with_another = """
import os, subprocess, sys, time
other = subprocess.Popen(['sleep', '60'])
with open(sys.argv[0] + '.new', 'w') as out:
    out.write(str(other.pid))
os.rename(sys.argv[0] + '.new', sys.argv[0] + '.told')
time.sleep(600)
"""
stuck_elsewhere = stuck_with_another.replace("'60']", "'60'], start_new_session=True")


class Log:
    def __init__(self) -> None:
        self.rows: list[tuple[Any, ...]] = []

    def append(self, row: tuple[Any, ...]) -> None:
        self.rows.append(row)


class Fed:
    """A feed whose only tracker is that program."""

    def __init__(self, program: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = folder / "tracker.py"
        path.write_text(program)
        self.told_path = folder / "tracker.py.told"
        monkeypatch.setattr(feed_module, "python_command", lambda: [sys.executable, str(path)])
        self.log, self.warnings = Log(), list[str]()
        self.feed = TrackerFeed(self.log)
        self.feed.start(["tensorboard"], folder, {"a.b": 1}, self.warnings.append)
        self.probe = Probe(self.feed, "trainer")

    def window(self, step: int) -> None:
        self.probe.mark("window", window=step, tokens=10, note=json.dumps({"loss": float(step)}))

    def told(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.told_path.read_text().splitlines()]


def test_everything_arrives_in_order_from_beginning_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed = Fed(writes_down, tmp_path, monkeypatch)
    for step in range(500):
        fed.window(step)
    fed.feed.close("finished")
    first, *points, last = fed.told()
    assert first == {"run": str(tmp_path), "config": {"a.b": 1}}
    assert [point["step"] for point in points] == list(range(1, 501))
    assert [point["values"]["train/loss"] for point in points] == [float(step) for step in range(500)]
    assert all(abs(point["time_s"] - time.time()) < 60 for point in points)
    assert last == {"end": "finished"}
    assert fed.warnings == []
    assert len(fed.log.rows) == 500, "the events are kept as ever"


@pytest.mark.parametrize(
    ("program", "words"), [(fails, "no such project"), (fails_at_once, "cannot be imported")]
)
def test_a_tracker_that_fails_is_one_warning_with_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, words: str
) -> None:
    fed = Fed(program, tmp_path, monkeypatch)
    for step in range(200):
        fed.window(step)
        time.sleep(0.002)
    fed.feed.close("finished")
    (warning,) = fed.warnings
    assert warning.startswith("tracker tensorboard failed: ")
    assert words in warning
    assert len(fed.log.rows) == 200


@pytest.mark.parametrize("program", [stuck, stuck_with_another, stuck_elsewhere])
def test_a_tracker_that_is_stuck_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    """Nor do processes that it has started, to which it has passed on its end of the pipe."""
    monkeypatch.setattr(feed_module, "close_grace_s", 1.0)
    monkeypatch.setattr(feed_module, "points_kept", 50)
    fed = Fed(program, tmp_path, monkeypatch)
    started = time.monotonic()
    for step in range(5000):  # far more than a pipe and the queue hold
        fed.window(step)
    appended_s = time.monotonic() - started
    closing = threading.Thread(target=fed.feed.close, args=["finished"], daemon=True)
    closing.start()
    closing.join(30)
    if program == stuck_elsewhere and fed.told_path.exists():
        os.kill(int(fed.told_path.read_text()), signal.SIGKILL)  # nobody else can
    assert not closing.is_alive(), "the run would never end"
    assert appended_s < 30, "appending never waits for the tracker, which would be for ever"
    (warning,) = fed.warnings
    assert "did not end within 1 s" in warning
    assert fed.feed._children[0]._process.returncode is not None, "it is gone"
    assert len(fed.log.rows) == 5000


def test_a_trainer_that_is_killed_ends_its_trackers(tmp_path: Path) -> None:
    """The pipe is all that they have of it."""
    import subprocess

    program = tmp_path / "tracker.py"
    program.write_text(writes_down + "    out.write('end of file')\n")
    code = (
        "import os, sys; from pathlib import Path; from dflash.trackers import feed;"
        f"feed.python_command = lambda: [sys.executable, {str(program)!r}];"
        f"f = feed.TrackerFeed(None); f.start(['tensorboard'], Path({str(tmp_path)!r}), {{}}, print);"
        "import time; time.sleep(1); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code], check=False, timeout=60)
    told = tmp_path / "tracker.py.told"
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and not (told.exists() and "end of file" in told.read_text()):
        time.sleep(0.05)
    assert "end of file" in told.read_text()


def test_a_package_that_is_missing_is_refused_with_the_extra_that_brings_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(feed_module, "find_spec", lambda name: None if name == "wandb" else object())
    check_trackers(["tensorboard", "trackio"])
    with pytest.raises(DeviceError, match=r"dflash-tune\[wandb\]") as raised:
        check_trackers(["tensorboard", "wandb"])
    assert raised.value.exit_code == 2
