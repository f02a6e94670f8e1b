"""Events of a run in one tall schema, and the Probe through which code emits them.

A span has a start and a duration, a mark only a time, a gauge a value at a time. Times are
CLOCK_MONOTONIC nanoseconds. Spans with clock "gpu" were timed by CUDA event pairs and tied to the host
clock by an anchor event; clock "host" is Python's view, which for CUDA work is only the enqueueing.

Span names (stage: prefetch, target, drafter, trainer):
  work of a stage     pack, forward, gather (taps into the send buffer, where that is a pass of its own),
                      backward (drafter forward and backward), sum, optimizer, checkpoint, evaluate
                      (documents held out, on the first drafter's device), load, compile, validate
  waits               get, put (a channel), gpu_wait (own device), copy_wait (a copy that must end before
                      going on), window_turn (an earlier window not yet sent), window_wait (a window not
                      yet stepped, or not yet trained by the other drafters' devices), device_wait (a logical
                      device computing for another role that shares it), barrier (schedule lockstep: the
                      other roles' phase), lock_wait (a lock of the compiler or its autotuner)
  copies              copy: with src, dst, path, bytes; `on_critical_path` in note when the stage waited
Marks:   window (window end at completion: tokens, note=JSON of loss figures), evaluation (of documents held
         out: note=JSON), take (a drafter took a batch; note "home" or "away"), dispatch, start, stop,
         warning (note), accounting (note)
Gauges:  depth and capacity (channel; value), allocated_bytes, reserved_bytes, alloc_retries,
         peak_allocated_bytes, peak_reserved_bytes (the most since training began), recompiles,
         autotune_s, lr, loss, accuracy
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from dflash.contract.arrowlog import ArrowLog

event_schema = pa.schema(
    [
        ("t_ns", pa.int64()),
        ("dur_ns", pa.int64()),  # null for marks and gauges
        ("kind", pa.string()),  # span | mark | gauge
        ("name", pa.string()),
        ("stage", pa.string()),
        ("index", pa.int16()),  # which of several equal stages
        ("device", pa.string()),  # cuda:0, logical:0, cpu
        ("clock", pa.string()),  # host | gpu
        ("tid", pa.int32()),  # native thread id of the emitter
        ("channel", pa.string()),
        ("src", pa.string()),
        ("dst", pa.string()),
        ("path", pa.string()),  # pageable | pinned | peer
        ("batch", pa.int64()),
        ("window", pa.int64()),
        ("tokens", pa.int64()),
        ("bytes", pa.int64()),
        ("value", pa.float64()),
        ("note", pa.string()),
    ]
)

sample_schema = pa.schema(
    [
        ("t_ns", pa.int64()),
        ("source", pa.string()),  # the sampler
        ("key", pa.string()),  # whose: a GPU uuid, thread name, process
        ("metric", pa.string()),  # with its unit: power_w, rss_anon_bytes
        ("value", pa.float64()),  # null when it could not be read
        ("reason", pa.string()),  # why not
    ]
)


class RowSink(Protocol):
    """What takes rows: an ArrowLog, or something in front of one."""

    def append(self, row: tuple[Any, ...]) -> None:
        """Take one row, in schema order. Never blocks."""


class Probe:
    """Emits events for one stage on one device. Costs a few microseconds; never blocks."""

    __slots__ = ("_log", "device", "index", "stage")

    def __init__(self, log: RowSink | None, stage: str, index: int = 0, device: str = "cpu") -> None:
        self._log, self.stage, self.index, self.device = log, stage, index, device

    def bind(self, stage: str, index: int = 0, device: str = "cpu") -> Probe:
        """The same log, seen from another stage."""
        return Probe(self._log, stage, index, device)

    @contextmanager
    def span(self, name: str, **fields: object) -> Iterator[None]:
        """Emit the time spent in the block, also when it raises."""
        start_ns = time.monotonic_ns()
        try:
            yield
        finally:
            self.emit_span(name, start_ns, time.monotonic_ns(), **fields)

    def emit_span(self, name: str, start_ns: int, end_ns: int, **fields: object) -> None:
        """A span whose ends are known. Fields are columns of `event_schema`."""
        self._emit("span", name, start_ns, end_ns - start_ns, fields)

    def mark(self, name: str, *, t_ns: int | None = None, **fields: object) -> None:
        """Something happened, now or at `t_ns`."""
        self._emit("mark", name, time.monotonic_ns() if t_ns is None else t_ns, None, fields)

    def gauge(self, name: str, value: float, **fields: object) -> None:
        """A quantity has this value now."""
        self._emit("gauge", name, time.monotonic_ns(), None, {**fields, "value": float(value)})

    def _emit(self, kind: str, name: str, t_ns: int, dur_ns: int | None, fields: dict[str, object]) -> None:
        if self._log is None:
            return
        get = fields.get
        self._log.append(
            (
                t_ns,
                dur_ns,
                kind,
                name,
                self.stage,
                self.index,
                get("device", self.device),
                get("clock", "host"),
                threading.get_native_id(),
                *(get(column) for column in _optional_columns),
            )
        )


_optional_columns = event_schema.names[9:]
silent = Probe(None, "none")  # a probe that keeps nothing


def open_events(path: Path) -> tuple[ArrowLog, Probe]:
    """A new event log and a probe for the trainer itself."""
    log = ArrowLog(path, event_schema)
    return log, Probe(log, "trainer")
