"""The recorder's side of `profiler_overhead.py`: the profiler on and off again, and what it used while on.

Starts exactly what `dflash-profile record` starts. Knows nothing of trainers' speeds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import ipc

from benchmarks.overhead_switch import Switch
from dflash.contract.arrowlog import compact_log, read_log
from dflash.contract.rundir import RunDir
from profiler.child import Child
from profiler.recorder import RecordOptions, start_samplers
from profiler.samplers.base import SamplerThread
from profiler.samplers.gpu import open_sensors


@dataclass(slots=True)
class Profiler:
    """The samplers of a recording and the switch of the trainer's events, on and off again."""

    run: RunDir
    child: Child
    switch: Switch
    folder: Path
    options: RecordOptions
    logs: list[Path] = field(default_factory=list)  # a directory for each time it was on
    reports: dict[str, dict[str, Any]] = field(default_factory=dict)  # by sampler: how it went
    threads: dict[str, SamplerThread] = field(default_factory=dict)

    def turn(self, on: bool) -> None:
        """Be on or off from here on."""
        if on and not self.threads:
            self.logs.append(self.folder / f"samples-{len(self.logs):02d}")
            sensors = open_sensors(self.options.gpu)
            self.threads.update(start_samplers(self.run, self.child, self.options, sensors, self.logs[-1]))
        if not on:
            self._stop_samplers()
        self.switch.set(Switch.on if on else Switch.off)

    def _stop_samplers(self) -> None:
        for name, thread in self.threads.items():
            report = thread.stop()
            told = self.reports.setdefault(
                name, {"status": report.status, "reason": report.reason, "cpu_s": 0.0}
            )
            told["cpu_s"] += report.cpu_s
            if report.reason is not None:
                told["status"], told["reason"] = report.status, report.reason
        self.threads.clear()


@dataclass(frozen=True, slots=True)
class Stretch:
    """A time without changes, and the CPU time that this process used in it."""

    start_ns: int
    end_ns: int
    cpu_s: float  # with that of libraries' threads
    cpu_by_thread_s: dict[str, float]

    @property
    def seconds(self) -> float:
        return (self.end_ns - self.start_ns) / 1e9


def observe(wait: Callable[[], None]) -> Stretch:
    """What this process uses while `wait` passes the time."""
    before, cpu_s, start_ns = read_threads(), time.process_time(), time.monotonic_ns()
    wait()
    end_ns, cpu_s, after = time.monotonic_ns(), time.process_time() - cpu_s, read_threads()
    by_thread = {name: used - before.get(name, 0.0) for name, used in sorted(after.items())}
    return Stretch(start_ns, end_ns, cpu_s, by_thread)


def read_threads() -> dict[str, float]:
    """CPU seconds of each Python thread of this process."""
    read = {}
    for thread in threading.enumerate():
        run_ns = Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text(encoding="ascii").split()[0]
        read[thread.name] = int(run_ns) / 1e9
    return read


def rows_within(path: Path, stretch: Stretch) -> pa.Table:
    """The rows of a log whose times lie in `stretch`."""
    table, _ = read_log(path)
    t_ns = table["t_ns"]
    return table.filter(pc.and_(pc.greater_equal(t_ns, stretch.start_ns), pc.less(t_ns, stretch.end_ns)))


def bytes_per_hour(path: Path, stretch: Stretch) -> float:
    """What the rows of `stretch` take on disk once a recording has compacted them, for an hour of it.

    What a sampler says only once is said at its start, so it is not in it; nor is the frame of the file.
    """
    table, scratch = rows_within(path, stretch), path.with_suffix(".scratch")
    rows_bytes = compacted_bytes(table, scratch) - compacted_bytes(table.slice(0, 0), scratch)
    return rows_bytes / stretch.seconds * 3600


def compacted_bytes(table: pa.Table, scratch: Path) -> int:
    """The size of a compacted log of these rows."""
    with pa.OSFile(str(scratch), "wb") as file, ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)
    compact_log(scratch)
    size = scratch.stat().st_size
    scratch.unlink()
    return size
