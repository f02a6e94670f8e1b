"""Feeds trackers with a run's figures without ever making it wait.

Each tracker is a process of its own (`dflash/trackers/child.py`), so that its imports, its threads and the
GIL that they want are not the trainer's, and nothing that it does can end the run. A thread for each writes
to it; what it does not take in time is dropped, oldest first. A tracker in trouble is one warning.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dflash.contract.errors import DeviceError
from dflash.contract.events import RowSink
from dflash.contract.rundir import one_instant, python_command
from dflash.trackers.figures import FigureReader, Point

points_kept = 10_000  # for a tracker that is slow; older ones are dropped
close_grace_s = 30.0  # for a tracker to send and write what it has, once the run has ended
_pause_s = 0.2
_killed_s = 5.0  # for the system to end a process that was killed
extras = {"tensorboard": "trackers", "wandb": "wandb", "trackio": "trackio"}
Warn = Callable[[str], None]


def check_trackers(names: Sequence[str]) -> None:
    """Raises DeviceError for a tracker whose package is not installed."""
    for name in names:
        if find_spec(name) is None:
            raise DeviceError(
                "the package of a tracker is not installed",
                where="run.trackers",
                found=name,
                remedy=f"pip install 'dflash-tune[{extras[name]}]', or leave {name} out of run.trackers",
            )


class TrackerFeed:
    """A sink in front of the event log that also feeds trackers. `append` never blocks."""

    def __init__(self, log: RowSink) -> None:
        self._log = log
        self._reader = FigureReader()
        self._reading = threading.Lock()
        self._children: list[_Child] = []
        utc_ns, monotonic_ns = one_instant()
        self._epoch_ns = utc_ns - monotonic_ns

    def start(self, names: Sequence[str], run: Path, config: Mapping[str, Any], warn: Warn) -> None:
        """Start a process for each of `names`. `warn` is called from other threads."""
        first = {"run": str(run.resolve()), "config": dict(config)}
        self._children = [_Child(name, run, first, warn) for name in names]

    def append(self, row: tuple[Any, ...]) -> None:
        """Take one row."""
        self._log.append(row)
        if not self._children:
            return
        with self._reading:
            for point in self._reader.read(row):
                for child in self._children:
                    child.put(point, (point.t_ns + self._epoch_ns) / 1e9)

    def close(self, status: str) -> None:
        """The run has ended: let trackers write what they have, for `close_grace_s` together."""
        deadline = time.monotonic() + close_grace_s
        for child in self._children:
            child.end(status)
        for child in self._children:
            child.close(max(0.0, deadline - time.monotonic()))


class _Child:
    """One tracker's process and the thread that writes to it."""

    def __init__(self, name: str, run: Path, start: Mapping[str, Any], warn: Warn) -> None:
        self._name, self._warn = name, warn
        self._lines: deque[str] = deque([json.dumps(start)], maxlen=points_kept)
        self._put, self._taken = 1, 0
        self._ending, self._gave_up = threading.Event(), False
        self._log_path = run / "trackers" / f"{name}.log"
        self._log_path.parent.mkdir(parents=True, exist_ok=True)
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [*python_command(), "track", name],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for the run, which tells its trackers itself
            )
        self._thread = threading.Thread(target=self._run, name=f"tracker:{name}", daemon=True)
        self._thread.start()

    def put(self, point: Point, time_s: float) -> None:
        """One more point for it."""
        self._put += 1
        self._lines.append(json.dumps({"step": point.step, "time_s": time_s, "values": point.values}))

    def end(self, status: str) -> None:
        """Nothing more will come."""
        self._lines.append(json.dumps({"end": status}))
        self._ending.set()

    def close(self, grace_s: float) -> None:
        """Wait for the process, for so long at most; then it is ended."""
        deadline = time.monotonic() + grace_s
        self._thread.join(grace_s)
        try:
            self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._give_up(f"did not end within {close_grace_s:g} s of the run and was ended")
            self._kill()
        self._thread.join(_pause_s)
        if not self._thread.is_alive():  # else somebody else holds the other end, and closing would wait too
            with suppress(OSError):  # what could not be written any more
                self._close_pipe()
        if self._process.returncode != 0:
            self._give_up(self._last_words())
        elif dropped := self._put - self._taken:
            self._give_up(f"was too slow: {dropped} of {self._put} points were dropped")

    def _kill(self) -> None:
        """It and what it started: a process of theirs may hold the pipe's other end too."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # it leads a session, so a group too
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_killed_s)

    def _run(self) -> None:
        while True:
            ending = self._ending.is_set()
            while self._lines:
                line = self._lines.popleft()
                if not self._write_line(line):
                    return
                self._taken += not line.startswith('{"end"')
            if ending:
                break
            self._ending.wait(_pause_s)
        with suppress(OSError):
            self._close_pipe()

    def _close_pipe(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()

    def _write_line(self, line: str) -> bool:
        """Whether the process is still there to take it. Blocks while its pipe is full."""
        stdin = self._process.stdin
        assert stdin is not None
        try:
            stdin.write(line.encode() + b"\n")
            stdin.flush()
        except OSError:
            self._process.wait()
            self._give_up(self._last_words())
            return False
        return True

    def _give_up(self, why: str) -> None:
        if not self._gave_up:
            self._gave_up = True
            self._warn(f"tracker {self._name} {why}; see {self._log_path}")

    def _last_words(self) -> str:
        try:
            lines = self._log_path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        except OSError:
            lines = []
        return f"failed: {lines[-1] if lines else f'exit code {self._process.returncode}'}"
