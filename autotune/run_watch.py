"""A trial in progress, watched from outside: does it still get on, and is its GPU still there.

A run that hangs is ended long before its time limit, by the process group and pid that the recorder knows.
Knows nothing of what the run trains.
"""

from __future__ import annotations

import dataclasses
import itertools
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING

from autotune.failure_words import foreign_words, hang_words
from autotune.gpus import GpuWatch
from dflash.contract.events import event_schema
from dflash.contract.rundir import RunDir

if TYPE_CHECKING:
    from profiler.child import Exit, Watched
    from profiler.live.stream import StreamTail
    from profiler.recorder import Recording, RecordOptions

start_limit_s = 600.0  # for loading and compiling, until the first window has ended
least_stall_s = 180.0  # without a window: a compilation in the middle may take a minute or two
stall_windows = 20  # … and so many times as long as a window usually takes
look_every_s = 1.0
stop_signals = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
gpu_every_s = 5.0


@dataclass(slots=True)
class RunWatch:
    """Looks at a run directory that is being written. `look` says why the run must be ended, or None.

    Times are seconds of one clock that the caller reads.
    """

    run_path: Path
    began_s: float
    gpus: GpuWatch | None = None
    reason: str | None = None
    _tails: dict[Path, StreamTail] = field(default_factory=dict)
    _ends_ns: list[int] = field(default_factory=list)
    _seen_s: float | None = None  # when the last new window was seen
    _looked_s: float = float("-inf")
    _gpus_asked_s: float = float("-inf")

    def look(self, now_s: float) -> str | None:
        """Read what is new, not too often, and judge."""
        if self.reason is None and now_s - self._looked_s >= look_every_s:
            self._looked_s = now_s
            if new := self._new_ends():
                self._ends_ns += new
                self._seen_s = now_s
            self.reason = self._find_stall(now_s) or self._find_lost(now_s)
        return self.reason

    def _find_stall(self, now_s: float) -> str | None:
        if self._seen_s is None:
            waited_s = now_s - self.began_s
            return f"{hang_words} {waited_s:.0f} s from the start" if waited_s > start_limit_s else None
        waited_s = now_s - self._seen_s
        if waited_s <= max(least_stall_s, stall_windows * self._usual_window_s()):
            return None
        return f"{hang_words} {waited_s:.0f} s after {len(self._ends_ns)} windows"

    def _usual_window_s(self) -> float:
        """The median of those seen, 0 before there are two."""
        ends = sorted(self._ends_ns)
        lengths = sorted(b - a for a, b in itertools.pairwise(ends))
        return lengths[len(lengths) // 2] / 1e9 if lengths else 0.0

    def _find_lost(self, now_s: float) -> str | None:
        if self.gpus is None or now_s - self._gpus_asked_s < gpu_every_s:
            return None
        self._gpus_asked_s = now_s
        return self.gpus.find_lost()

    def _new_ends(self) -> list[int]:
        """When windows ended (CLOCK_MONOTONIC ns), of those not seen before."""
        import pyarrow.compute as pc

        from profiler.live.stream import StreamTail

        ends: list[int] = []
        for path in RunDir(self.run_path).events.glob("*.arrow"):
            tail = self._tails.setdefault(path, StreamTail(path, event_schema, "events"))
            rows = tail.read_new()
            # By Arrow, not row by row: the trainer that is being measured may share these cores.
            is_end = pc.and_(pc.equal(rows["kind"], "mark"), pc.equal(rows["name"], "window"))
            ends += rows["t_ns"].filter(is_end).to_pylist()
        return ends


class WatchedChild:
    """A child of the recorder whose every `wait` is also a look at how the run gets on."""

    def __init__(self, child: Watched, watch: RunWatch, stop: threading.Event) -> None:
        self._child, self._watch, self._stop = child, watch, stop
        self.pid = child.pid
        self.was_signalled = False  # by us, for the user or because it is watched

    @property
    def launcher_pid(self) -> int:
        """The ancestor of everything that the command starts."""
        return self._child.launcher_pid

    def release(self) -> None:
        """Let the command begin."""
        self._child.release()

    def signal(self, number: int) -> None:
        """Send a signal to the command's process group."""
        self.was_signalled = True
        self._child.signal(number)

    def wait(self, timeout_s: float) -> Exit | None:
        """How it ended, or None when it still runs after `timeout_s`."""
        end = self._child.wait(timeout_s)
        if end is None and self._watch.look(time.monotonic()) is not None:
            self._stop.set()
        return end

    def close(self) -> None:
        """End whatever still runs."""
        self._child.close()


def record_watched(
    command: Sequence[str],
    run_path: Path,
    options: RecordOptions,
    *,
    start: Callable[..., Watched] | None = None,
    gpus: GpuWatch | None = None,
) -> Recording:
    """As profiler.recorder.record; a run that hangs or loses its GPU is ended, and that is why it failed.

    `start`: how the command becomes a process, if not as a child of its own.
    """
    from profiler.child import Child
    from profiler.recorder import record

    begin, stop = start or Child, threading.Event()
    watch = RunWatch(run_path, time.monotonic(), gpus)
    children: list[WatchedChild] = []

    def start_watched(
        line: Sequence[str], *, env: Mapping[str, str] | None = None, output: IO[bytes] | None = None
    ) -> WatchedChild:
        children.append(WatchedChild(begin(line, env=env, output=output), watch, stop))
        return children[0]

    recording = record(command, run_path, options, stop=stop, start=start_watched)
    reason = _blame(recording, watch, was_signalled=children[0].was_signalled)
    if reason is None:
        return recording
    return dataclasses.replace(recording, exit_code=1, status="failed", reason=reason)


def _blame(recording: Recording, watch: RunWatch, *, was_signalled: bool) -> str | None:
    """What is to blame for an end beyond what the recording says, with that; None: nothing is."""
    if watch.reason is not None:
        # A run that fails while it is being ended says why, be it that it had failed before.
        told = recording.reason if recording.status == "failed" else None
        return f"{watch.reason}; {told}" if told else watch.reason
    if recording.exit_code - 128 in stop_signals and not was_signalled:
        return _blame_others(recording.exit_code - 128, recording.reason)
    lost = watch.gpus.find_lost() if watch.gpus is not None and recording.exit_code != 0 else None
    return lost and f"{lost}; {recording.reason or 'no further reason'}"


def _blame_others(number: int, reason: str | None) -> str:
    """A stop that neither the user nor we asked for: the search goes on."""
    told = f"; {reason}" if reason else ""
    return f"ended by {signal.Signals(number).name}, {foreign_words}{told}"
