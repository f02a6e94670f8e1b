"""A run as a Chrome trace, which Perfetto and chrome://tracing open: our events and samples on one clock.

Reads and writes row by row, so that a long run needs no more memory than a short one. Times are microseconds
since the run's start. What cannot be placed (no time, a negative length) is left out and counted. Knows
nothing of what is healthy.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

import pyarrow as pa

from dflash.contract.arrowlog import stream_batches
from dflash.contract.errors import RunError
from dflash.contract.events import event_schema, sample_schema
from dflash.contract.rundir import RunDir

Event = dict[str, Any]
Row = Mapping[str, Any]

threads, gpus, links, queues, sensors, host = 1, 2, 3, 4, 5, 6  # pids, which viewers show as groups
group_names: Final = {
    threads: "stage threads",
    gpus: "GPU work",
    links: "copies beside the stages",
    queues: "queues and rates",
    sensors: "GPU sensors",
    host: "host",
}
_stages: Final = ("prefetch", "target", "drafter")
_facts: Final = ("channel", "path", "src", "dst", "batch", "window", "tokens", "bytes", "note")
_flow_steps: Final = {("prefetch", "pack"): "s", ("target", "forward"): "t", ("drafter", "backward"): "f"}
_host_metrics: Final = {
    ("tree", "rss_anon_bytes"),
    ("tree", "rss_shmem_bytes"),
    ("tree", "rss_file_bytes"),
    ("tree", "swap_bytes"),
    ("machine", "mem_available_bytes"),
    ("cgroup", "cgroup_usage_bytes"),
}
_longest_text = 300


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written."""

    path: Path
    events: int
    left_out: int  # rows that have no place on a time axis


def export_trace(run_path: Path, out: Path | None = None) -> Exported:
    """Write the run at `run_path` to `out`, gzipped when it ends in .gz. Raises RunError.

    Without `out`: traces/run.json.gz in the run.
    """
    run = RunDir(run_path)
    manifest = run.manifest()
    target = out or run.traces / "run.json.gz"
    export = _Export(_start_ns(manifest), _gpu_names(manifest))
    temporary = target.with_name(f".{target.name}.tmp")
    try:
        if out is None:
            target.parent.mkdir(exist_ok=True)
        with _open(temporary, zipped=target.suffix == ".gz") as file:
            count = _write(file, export.events(run))
        temporary.replace(target)
    except OSError as error:
        raise RunError(f"the trace cannot be written: {error}", where=str(target)) from None
    finally:
        temporary.unlink(missing_ok=True)
    return Exported(target, count, export.left_out)


def _open(path: Path, *, zipped: bool) -> IO[str]:
    if zipped:
        return gzip.open(path, "wt", compresslevel=5, encoding="ascii")
    return path.open("w", encoding="ascii")


def _write(file: IO[str], events: Iterable[Event]) -> int:
    file.write('{"displayTimeUnit": "ms", "traceEvents": [')
    count = 0
    for count, event in enumerate(events, start=1):
        file.write(("\n" if count == 1 else ",\n") + json.dumps(event, allow_nan=False))
    file.write("\n]}\n")
    return count


def _start_ns(manifest: Mapping[str, Any]) -> int:
    clock = manifest.get("clock")
    start = clock.get("monotonic_ns") if isinstance(clock, Mapping) else None
    return start if isinstance(start, int) else 0


def _gpu_names(manifest: Mapping[str, Any]) -> dict[str, str]:
    """{uuid: "GPU 0 NVIDIA H200"}."""
    hardware = manifest.get("hardware")
    listed = hardware.get("gpus") if isinstance(hardware, Mapping) else None
    found = {}
    for number, gpu in enumerate(listed if isinstance(listed, list) else []):
        if isinstance(gpu, Mapping):
            index = gpu.get("index")
            found[str(gpu.get("uuid"))] = f"GPU {number if index is None else index} {gpu.get('name')}"
    return found


@dataclass(slots=True)
class _Export:
    """One pass over a run."""

    start_ns: int
    gpu_names: Mapping[str, str]
    left_out: int = 0
    _thread_names: dict[int, str] = field(default_factory=dict)
    _gpu_tracks: dict[str, int] = field(default_factory=dict)
    _copies: int = 0
    _last_window_ns: int | None = None

    def events(self, run: RunDir) -> Iterator[Event]:
        """Everything, in no particular order; viewers sort."""
        for path in sorted(run.events.glob("*.arrow")):
            for row in self._rows(path, event_schema):
                yield from self._event(row)
        for path in sorted(run.samples.glob("*.arrow")):
            for row in self._rows(path, sample_schema):
                yield from self._sample(row)
        yield from self._names()

    def _rows(self, path: Path, schema: pa.Schema) -> Iterator[Row]:
        """Rows that have a time; columns that a stream lacks are None."""
        try:
            for batch in stream_batches(path):
                for row in self._conform(batch, schema):
                    if row["t_ns"] is not None:
                        yield row
                    else:
                        self.left_out += 1
        except RunError:  # nothing in it can be read: killed before its header was written
            return

    def _conform(self, batch: pa.RecordBatch, schema: pa.Schema) -> list[Row]:
        """The rows with the columns of `schema` and their types; none of a batch that is not sound."""
        try:
            batch.validate(full=True)
            columns = {
                wanted.name: pa.nulls(batch.num_rows, wanted.type)
                if (place := batch.schema.get_field_index(wanted.name)) < 0
                else batch.column(place).cast(wanted.type)
                for wanted in schema
            }
        except pa.ArrowException:
            self.left_out += batch.num_rows
            return []
        rows: list[Row] = pa.table(columns).to_pylist()
        return rows

    def _event(self, row: Row) -> Iterator[Event]:
        kind, length = row["kind"], row["dur_ns"]
        if kind == "span" and length is not None and length >= 0:
            yield from self._span(row, length)
        elif kind == "gauge" and _is_number(row["value"]):
            yield from self._gauge(row)
        elif kind == "mark":
            yield from self._mark(row)
        else:
            self.left_out += 1

    def _span(self, row: Row, length_ns: int) -> Iterator[Event]:
        begin, length = self._us(row["t_ns"]), length_ns / 1e3
        base = {"name": _text(row["name"]), "cat": _text(row["stage"]), "args": _arguments(row)}
        if row["stage"] == "link":  # may overlap, so each on a track of its own
            self._copies += 1
            ends = {**base, "pid": links, "tid": 0, "id": self._copies}
            ends["name"] = f"{base['name']} {_text(row['src'])} → {_text(row['dst'])}"
            yield {**ends, "ph": "b", "ts": begin}
            yield {**ends, "ph": "e", "ts": begin + length}
            return
        if row["clock"] == "gpu":
            track = self._gpu_tracks.setdefault(_who(row), len(self._gpu_tracks) + 1)
            yield {**base, "ph": "X", "pid": gpus, "tid": track, "ts": begin, "dur": length}
            return
        tid = self._tid(row)
        yield {**base, "ph": "X", "pid": threads, "tid": tid, "ts": begin, "dur": length}
        step = _flow_steps.get((row["stage"], row["name"]))
        if step is not None and row["batch"] is not None:
            flow = {"name": "batch", "cat": "batch", "id": row["batch"], "pid": threads, "tid": tid}
            yield {**flow, "ph": step, "ts": begin + length / 2} | ({"bp": "e"} if step == "f" else {})

    def _gauge(self, row: Row) -> Iterator[Event]:
        place = row["channel"] or row["device"]
        yield self._counter(queues, f"{_text(row['name'])} {_text(place)}", row["t_ns"], row["value"])

    def _mark(self, row: Row) -> Iterator[Event]:
        base = {"name": _text(row["name"]), "cat": "mark", "pid": threads, "args": _arguments(row)}
        if row["name"] != "window":
            yield {**base, "ph": "i", "s": "t", "tid": self._tid(row), "ts": self._us(row["t_ns"])}
            return
        yield {**base, "ph": "i", "s": "g", "tid": self._tid(row), "ts": self._us(row["t_ns"])}
        before, self._last_window_ns = self._last_window_ns, row["t_ns"]
        if before is not None and row["tokens"] is not None and row["t_ns"] > before:
            rate = row["tokens"] / (row["t_ns"] - before) * 1e9  # from the last window's end to this one's
            yield self._counter(queues, "tokens/s", before, rate)

    def _sample(self, row: Row) -> Iterator[Event]:
        key, metric, value = row["key"], _text(row["metric"]), row["value"]
        if not _is_number(value):
            return  # unknown: a counter has no way to say so but to keep its last value
        if row["source"] == "gpu":
            name = self.gpu_names.get(str(key), _text(key))
            yield self._counter(sensors, f"{name} {metric}", row["t_ns"], value)
        elif (key, metric) in _host_metrics:
            yield self._counter(host, metric, row["t_ns"], value)

    def _counter(self, pid: int, name: str, t_ns: int, value: float) -> Event:
        return {"ph": "C", "pid": pid, "tid": 0, "name": name, "ts": self._us(t_ns), "args": {"value": value}}

    def _tid(self, row: Row) -> int:
        """The row's thread, which is named for the stage that it runs, whoever emits from it."""
        tid = row["tid"] or 0
        name = _who(row) if row["stage"] in _stages else _text(row["stage"])
        if row["stage"] in _stages or tid not in self._thread_names:
            self._thread_names[tid] = name
        return tid

    def _names(self) -> Iterator[Event]:
        for pid, name in group_names.items():
            yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}}
            yield {"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "args": {"sort_index": pid}}
        tracks = [(threads, tid, name) for tid, name in self._thread_names.items()]
        tracks += [(gpus, tid, name) for name, tid in self._gpu_tracks.items()]
        for pid, tid, name in tracks:
            yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}}

    def _us(self, t_ns: int) -> float:
        return (t_ns - self.start_ns) / 1e3


def _who(row: Row) -> str:
    return f"{_text(row['stage'])} {row['index'] or 0} on {_text(row['device'])}"


def _arguments(row: Row) -> dict[str, Any]:
    """What else is known, with text cut short: a run may come from a stranger."""
    return {name: _text(v) if isinstance(v, str) else v for name in _facts if (v := row[name]) is not None}


def _text(value: object) -> str:
    return "n/a" if value is None else str(value)[:_longest_text]


def _is_number(value: float | None) -> bool:
    return value is not None and math.isfinite(value)
