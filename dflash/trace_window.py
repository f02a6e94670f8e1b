"""A torch.profiler window over a few optimizer steps, as one Chrome trace with our threads and spans in it.

A thread of its own starts, stops and writes: torch wants start and stop on one thread, and the pipeline goes
on while the file is written. Nothing is profiled outside the window. Knows nothing of stages: threads have
the names they were given, spans are the events that were emitted meanwhile.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile

from dflash.contract.events import RowSink, event_schema
from dflash.contract.rundir import RunDir, one_instant
from dflash.contract.steps import StepRange

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # it reports every start and stop on stderr
_columns = event_schema.names
_list_end = re.compile(rb'\]\s*,\s*"traceName"')
_ends_bytes = 65536  # what is looked at of either end of torch's file


class EventTap:
    """Passes rows on to a log, and keeps them as well while it is open."""

    def __init__(self, log: RowSink) -> None:
        self._log = log
        self._kept: list[tuple[Any, ...]] | None = None

    def append(self, row: tuple[Any, ...]) -> None:
        """Take one row."""
        self._log.append(row)
        kept = self._kept
        if kept is not None:
            kept.append(row)

    def open(self) -> None:
        """Keep rows from now on."""
        self._kept = []

    def close(self) -> list[tuple[Any, ...]]:
        """Keep no more; what was kept."""
        kept, self._kept = self._kept or [], None
        return kept


class TraceWindow:
    """Profiles `steps`. `reached` is told how far the run is, by whichever thread completes windows."""

    def __init__(self, steps: StepRange, run: RunDir, tap: EventTap) -> None:
        self.steps, self.path = steps, run.traces / f"steps-{steps.first}-{steps.last}.json.gz"
        self._tap = tap
        self._wanted, self._started = threading.Event(), threading.Event()
        self._over, self._stopped = threading.Event(), threading.Event()
        self._names: dict[int, str] = {}
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="trace", daemon=True)
        with _profiler():  # on the main thread and before anybody is in a hurry: the first takes seconds
            pass
        self._thread.start()

    def reached(self, step: int) -> None:
        """All steps before `step` are done. Blocks while the profiler starts or stops, not longer."""
        if step == self.steps.first:
            self._wanted.set()
            self._started.wait()
        elif step == self.steps.last + 1:
            self._over.set()
            self._stopped.wait()

    def close(self) -> None:
        """The run is over: end a window that is still open, and wait for the file."""
        self._over.set()
        self._wanted.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._wanted.wait()
            if not self._over.is_set():
                self._profile()
        except Exception as error:  # noqa: BLE001 - a thread boundary: training goes on without its trace
            self.error = error
        finally:
            self._started.set()
            self._stopped.set()

    def _profile(self) -> None:
        profiler = _profiler()
        self._note_threads()
        self._tap.open()
        profiler.start()
        self._started.set()
        while not self._over.wait(0.2):
            self._note_threads()
        self._note_threads()
        profiler.stop()
        rows = self._tap.close()
        self._stopped.set()
        self.path.parent.mkdir(exist_ok=True)
        raw = self.path.with_suffix(".torch.tmp")
        try:
            profiler.export_chrome_trace(str(raw))
            self._merge(raw, rows)
        finally:
            raw.unlink(missing_ok=True)

    def _note_threads(self) -> None:
        self._names |= {t.native_id: t.name for t in threading.enumerate() if t.native_id is not None}

    def _merge(self, raw: Path, rows: list[tuple[Any, ...]]) -> None:
        """The file that torch wrote with our events at the end of its list; never whole in memory."""
        done = self.path.with_suffix(".tmp")
        with raw.open("rb") as source, gzip.open(done, "wb", compresslevel=4) as out:
            base_ns = _base_ns(source.read(_ends_bytes))
            end = _end_of_list(source)
            source.seek(0)
            while (rest := end - source.tell()) > 0:
                out.write(source.read(min(rest, 1 << 20)))
            # Names come after torch's own ("thread 123 (python)"): viewers keep the last.
            for event in (*spans_as_events(rows, base_ns), *name_threads(self._names)):
                out.write(b",\n" + json.dumps(event).encode())
            shutil.copyfileobj(source, out)
        done.replace(self.path)


def _profiler() -> Any:
    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    every_thread = _ExperimentalConfig(profile_all_threads=True)
    return profile(activities=activities, experimental_config=every_thread)


def _base_ns(head: bytes) -> int:
    """What the trace's times are counted from, in UTC nanoseconds."""
    _, found, rest = head.partition(b'"baseTimeNanoseconds":')
    return int(rest.partition(b",")[0]) if found else 0


def _end_of_list(source: BinaryIO) -> int:
    """Where the list of events ends in torch's file."""
    size = source.seek(0, os.SEEK_END)
    start = source.seek(max(0, size - _ends_bytes))
    places = [match.start() for match in _list_end.finditer(source.read())]
    if not places:
        raise RuntimeError("torch.profiler wrote a trace whose list of events has no end")
    return start + places[-1]


def name_threads(names: dict[int, str]) -> Iterator[dict[str, Any]]:
    """Metadata that names this process's threads."""
    for tid, name in names.items():
        yield {"ph": "M", "name": "thread_name", "pid": os.getpid(), "tid": tid, "args": {"name": name}}


def spans_as_events(rows: Iterable[tuple[Any, ...]], base_ns: int) -> Iterator[dict[str, Any]]:
    """Host-clock spans among `rows`, on their threads; times are microseconds since `base_ns`."""
    utc_ns, monotonic_ns = one_instant()
    offset_ns = utc_ns - monotonic_ns - base_ns
    for row in rows:
        event = dict(zip(_columns, row, strict=True))
        if event["kind"] == "span" and event["clock"] == "host" and event["stage"] != "link":
            facts = ("stage", "index", "channel", "path", "batch", "window", "tokens", "bytes", "note")
            yield {
                "ph": "X",
                "cat": "stage",
                "name": event["name"],
                "pid": os.getpid(),
                "tid": event["tid"],
                "ts": (event["t_ns"] + offset_ns) / 1e3,
                "dur": event["dur_ns"] / 1e3,
                "args": {name: event[name] for name in facts if event[name] is not None},
            }
