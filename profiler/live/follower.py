"""Follows the directory of a run that may still be written, and says what its last minute or so holds.

Reads only what is new. Time is that of the run's own rows: there is no clock here. Knows nothing of what the
rows tell about the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from dflash.contract.events import event_schema, sample_schema
from dflash.contract.rundir import RunDir
from profiler.live.history import History, Latest
from profiler.live.stream import StreamTail
from profiler.run import Run

range_ns: Final = 60_000_000_000  # the range judged …
range_windows: Final = 15  # … or longer, until it holds so many windows: a diagnosis needs ten steady ones
keep_ns: Final = 600_000_000_000  # … but no longer than that
_kept_windows, _kept_notes = 400, 200
_notable_spans = ("checkpoint", "evaluate", "validate", "load", "compile")
_not_noted = ("window", "take", "dispatch", "start", "stop")  # too many, or told elsewhere


@dataclass(frozen=True, eq=False, kw_only=True)
class Recent:
    """The end of a run as far as it is written."""

    run: Run  # its frames reach back to `since_ns`, or are older rows still in force
    since_ns: int | None  # None: nothing was written yet
    latest_ns: int | None  # the last time in any row
    windows: pd.DataFrame  # window marks, newest last; further back than `since_ns`
    notes: pd.DataFrame  # other marks, and spans that are rare: the same
    warnings: tuple[str, ...]


class RunFollower:
    """`poll` again and again. Raises RunError when there is no run, or it is not one of ours."""

    def __init__(self, path: Path) -> None:
        self._dir = RunDir(path)
        self._manifest: Mapping[str, Any] = self._dir.manifest()
        self._tails: dict[Path, StreamTail] = {}
        keys = ["kind", "name", "stage", "index", "channel"]
        self._events = History(event_schema, keep_ns, keys)
        self._samples = History(sample_schema, keep_ns, ["source", "key", "metric"])
        self._windows = Latest(event_schema, _kept_windows)
        self._notes = Latest(event_schema, _kept_notes)

    @property
    def path(self) -> Path:
        return self._dir.path

    def poll(self) -> Recent:
        """Read what is new since the last call."""
        self._manifest = self._dir.manifest()
        # Events last: the first reading takes seconds, and shares of time end where the latest row does.
        self._samples.add(self._read_new(self._dir.samples, sample_schema, "samples"))
        self._take_events(self._read_new(self._dir.events, event_schema, "events"))
        times = [t for t in (self._events.latest_ns, self._samples.latest_ns) if t is not None]
        latest_ns = max(times, default=None)
        since_ns = None if latest_ns is None else self._since_ns(latest_ns)
        nothing = 2**62
        kept = self._kept()
        is_window = (kept["kind"] == "mark") & (kept["name"] == "window")
        return Recent(
            run=Run.of_tables(
                self.path,
                self._manifest,
                self._events.since(nothing if since_ns is None else since_ns),
                self._samples.since(nothing if since_ns is None else since_ns),
            ),
            since_ns=since_ns,
            latest_ns=latest_ns,
            windows=kept[is_window],
            notes=kept[~is_window],
            warnings=tuple(self._warnings()),
        )

    def _take_events(self, rows: pa.Table) -> None:
        self._events.add(rows)
        is_mark, name = pc.equal(rows["kind"], "mark"), rows["name"]
        self._windows.add(rows.filter(pc.and_(is_mark, pc.equal(name, "window"))))
        rare = pc.and_(is_mark, pc.invert(pc.is_in(name, pa.array(_not_noted))))
        self._notes.add(rows.filter(pc.or_(rare, pc.is_in(name, pa.array(_notable_spans)))))

    def _read_new(self, directory: Path, schema: pa.Schema, what: str) -> pa.Table:
        tables = [schema.empty_table()]
        for path in sorted(directory.glob("*.arrow")):
            tail = self._tails.get(path)
            if tail is None:
                tail = self._tails[path] = StreamTail(path, schema, what)
            tables.append(tail.read_new())
        return pa.concat_tables(tables)

    def _since_ns(self, latest_ns: int) -> int:
        ends = self._windows.rows["t_ns"].drop_null().to_numpy()
        enough_ns = int(ends[-range_windows - 1]) if len(ends) > range_windows else latest_ns - keep_ns
        if len(ends) == 0:
            enough_ns = latest_ns
        return max(min(latest_ns - range_ns, enough_ns), latest_ns - keep_ns)

    def _kept(self) -> pd.DataFrame:
        """Windows and notes, however old, as a frame of events."""
        rows = pa.concat_tables([self._windows.rows, self._notes.rows])
        return Run.of_tables(self.path, self._manifest, rows, sample_schema.empty_table()).events

    def _warnings(self) -> list[str]:
        told = []
        for path, tail in self._tails.items():
            name = f"{path.parent.name}/{path.name}"
            if tail.broken is not None:
                told.append(f"{name}: {tail.broken}")
            if tail.pending_bytes and self._manifest.get("status") != "running":
                told.append(f"{name}: its end is missing (the writer was killed)")
            if tail.skipped_batches:
                told.append(
                    f"{name}: {tail.skipped_batches} older batches were left out; the report has them"
                )
        return told
