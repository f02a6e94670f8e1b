"""Makes a run of a metrics file: events of its intervals, samples of its figures, a manifest that says so.

What comes out is read like any other run. Knows nothing of rules.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from dflash.contract.arrowlog import ArrowLog
from dflash.contract.events import event_schema, sample_schema
from dflash.contract.rundir import RunDir, create_run
from profiler.metrics_trace.layout import BatchTime, Layout, with_rates
from profiler.metrics_trace.reader import BadLine, MetricsTrace, read_metrics
from profiler.metrics_trace.readings import gib, read_samples
from profiler.run import missing_name

_start_ns: Final = 1_000_000_000  # the trace's start on the run's clock
_tids: Final = {"trainer": 1, "target": 10_001, "drafter": 20_001, "link": 30_001}
_work_fields: Final = {"target": "target.fwd_s", "drafter": "drafter.fwdbwd_s"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedRun:
    """A run that was made of a metrics file."""

    run: RunDir
    intervals: int
    targets: int
    drafters: int
    range_s: float
    bad_lines: tuple[BadLine, ...]
    notes: tuple[str, ...]  # what was left out, assumed or adapted


def import_metrics(source: Path, run_path: Path) -> ImportedRun:
    """Read `source` and write the run at `run_path`. Raises UsageError and RunError."""
    trace = read_metrics(source)
    plan = _Plan.of(trace)
    run = create_run(run_path, command=["dflash-profile", "import", str(source)])
    _write_events(run, plan)
    _write_samples(run, trace, plan)
    notes = (*trace.notes, *plan.notes)
    range_s = float(plan.rows["end_s"].iloc[-1])
    run.update(
        status="finished",
        started_utc=None,
        clock={"utc_ns": None, "monotonic_ns": _start_ns, "boot_id": None},
        emulated=False,
        versions={},
        devices=plan.devices(),
        workload={"imported": "metrics"},
        imported={
            "source": str(source.absolute()),
            "sha256": trace.sha256,
            "intervals": len(plan.rows),
            "bad_lines": [{"line": bad.line, "reason": bad.reason} for bad in trace.bad_lines],
            "notes": list(notes),
        },
    )
    return ImportedRun(
        run=run,
        intervals=len(plan.rows),
        targets=plan.threads["target"],
        drafters=plan.threads["drafter"],
        range_s=range_s,
        bad_lines=trace.bad_lines,
        notes=notes,
    )


@dataclass(eq=False, slots=True)
class _Plan:
    """Which threads there are, on which devices, and their batches."""

    rows: pd.DataFrame
    threads: dict[str, int]
    gpu_names: dict[str, str]  # the file's key to the name in the run
    gpus_of: dict[str, list[str]]  # stage to the file's keys
    batches: dict[str, list[BatchTime]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, trace: MetricsTrace) -> _Plan:
        gpus = list(trace.roles)
        gpus_of = {
            stage: [key for key in gpus if trace.roles[key] == stage] for stage in ("target", "drafter")
        }
        split = trace.split or (len(gpus_of["target"]) or 1, len(gpus_of["drafter"]) or 1)
        plan = cls(
            rows=with_rates(trace.rows, *split),
            threads=dict(zip(("target", "drafter"), split, strict=True)),
            gpu_names={key: f"gpu:{key}" for key in gpus},
            gpus_of=gpus_of,
        )
        if trace.split is None:
            plan.notes.append(f"no split is told: taken for {split[0]} targets and {split[1]} drafters")
        for stage in plan.threads:
            layout = Layout(stage, plan.rows)
            plan.batches[stage] = list(layout.batches())
            plan.notes += _notes_on(layout)
        return plan

    def device(self, stage: str, index: int) -> str:
        """Where a thread ran, as far as the file says; else a name of its own."""
        keys = self.gpus_of[stage]
        return self.gpu_names[keys[index]] if index < len(keys) else f"{stage}:{index}"

    def devices(self) -> list[dict[str, Any]]:
        """For the manifest: the threads' devices. Samples of a GPU have its name as their key."""
        known = set(self.gpu_names.values())
        return [
            {"name": name, "role": stage, "index": index, "uuid": name if name in known else None}
            for stage, count in self.threads.items()
            for index in range(count)
            for name in [self.device(stage, index)]
        ]


def _notes_on(layout: Layout) -> Iterator[str]:
    stage, rows = layout.stage, layout.rows
    if layout.overfull > 1:
        yield (
            f"a {stage}'s waits, copies and work add up to {100 * layout.overfull:.0f} % of its time: waits "
            "were kept, work was cut to what they leave"
        )
    if rows[f"{stage}_rate"].isna().all():
        yield f"batches of {stage}s cannot be counted without tok_s and budget, or the totals of q.hs"
    if rows[_work_fields[stage]].isna().all():
        yield f"{_work_fields[stage]} is missing: the work of {stage}s is unknown and counts as unaccounted"
    names = {"target": ("q.pre.get_wait_frac", "q.hs.put_wait_frac"), "drafter": ("q.hs.get_wait_frac",)}
    for name in names[stage]:
        if rows[name].isna().all():
            yield f"{name} is missing: that wait of {stage}s is unknown and counts as unaccounted"
    if stage == "target" and rows["target.d2h_s"].notna().any() and rows["target.d2h_overlap"].isna().all():
        yield "target.d2h_overlap is missing: whether targets wait for their copies is unknown; none are told"


class _EventWriter:
    """Rows of the event schema, times in seconds since the trace's start."""

    def __init__(self, log: ArrowLog) -> None:
        self._log = log

    def span(self, stage: str, index: int, name: str, begin_s: float, end_s: float, **fields: object) -> None:
        begin, end = nanoseconds(begin_s), nanoseconds(end_s)
        self._write("span", stage, index, name, t_ns=begin, dur_ns=end - begin, **fields)

    def mark(self, stage: str, index: int, name: str, t_s: float, **fields: object) -> None:
        self._write("mark", stage, index, name, t_ns=nanoseconds(t_s), **fields)

    def gauge(self, name: str, t_s: float, value: float, stage: str = "trainer", **fields: object) -> None:
        self._write("gauge", stage, 0, name, t_ns=nanoseconds(t_s), value=float(value), **fields)

    def _write(self, kind: str, stage: str, index: int, name: str, **fields: object) -> None:
        row = {"kind": kind, "name": name, "stage": stage, "index": index, "clock": "host", "device": "cpu"}
        row |= {"tid": _tids[stage] + index, **fields}
        self._log.append(tuple(row.get(column) for column in event_schema.names))


def nanoseconds(t_s: float) -> int:
    """Seconds since the trace's start on the run's clock."""
    return _start_ns + round(t_s * 1e9)


def _write_events(run: RunDir, plan: _Plan) -> None:
    log = ArrowLog(run.events / "imported.arrow", event_schema)
    try:
        events = _EventWriter(log)
        for stage, count in plan.threads.items():
            for index in range(count):
                _write_thread(events, plan, stage, index)
        _write_windows(events, plan.rows)
        _write_queues(events, plan.rows)
        _write_memory(events, plan.rows)
        _write_compilations(events, plan)
    finally:
        log.close()


def _write_thread(events: _EventWriter, plan: _Plan, stage: str, index: int) -> None:
    """One thread's batches; threads of a stage are alike, since the file has one figure for all of them."""
    device, count = plan.device(stage, index), plan.threads[stage]
    link_s = plan.rows["link_copy_s"].to_numpy()
    for batch in plan.batches[stage]:
        number = None if batch.number is None else batch.number * count + index
        facts = {"device": device, "batch": number}
        for piece in batch.pieces:
            part, size = piece.part, batch.item_bytes if piece.part.kind == "copy" else None
            ends = {"src": device, "dst": "cpu"} if stage == "target" else {"src": "cpu", "dst": device}
            if part.path == "peer":
                ends = {"src": missing_name, "dst": device}
            more = {"path": part.path, "bytes": size, **ends} if part.kind == "copy" else {}
            more |= {"channel": part.channel, "tokens": piece.tokens, **facts}
            events.span(stage, index, part.name, piece.begin_s, piece.end_s, **more)
        if number is None:
            continue
        if stage == "drafter":
            note = {True: "away", False: "home", None: None}[batch.away]
            events.mark(stage, index, "take", batch.begin_s, note=note, bytes=batch.item_bytes, **facts)
        else:
            row = int(np.searchsorted(plan.rows["start_s"], batch.end_s - 1e-9, side="right")) - 1
            if link_s[row] > 0:
                copy = {"path": "host", "src": device, "dst": "cpu", "bytes": batch.item_bytes}
                end_s = batch.end_s + float(link_s[row])
                events.span("link", index, "copy", batch.end_s, end_s, **facts, **copy)


def _write_windows(events: _EventWriter, rows: pd.DataFrame) -> None:
    """A window an interval; one number is left out at each gap, so that no window spans it."""
    tokens = (rows["tok_s"] * rows["length_s"]).to_numpy()
    numbers = np.arange(len(rows)) + rows["segment"].to_numpy()
    for number, end_s, count, loss in zip(numbers, rows["end_s"], tokens, rows["loss"], strict=True):
        note = {} if np.isnan(loss) else {"loss": loss}
        whole = None if np.isnan(count) else round(count)
        events.mark("trainer", 0, "window", end_s, window=int(number), tokens=whole, note=json.dumps(note))


def _write_queues(events: _EventWriter, rows: pd.DataFrame) -> None:
    for channel in ("q_pre", "q_hs"):
        name = channel.replace("_", ".")
        for gauge, column in (("capacity", f"{name}.cap"), ("depth", f"{name}.depth")):
            known = rows[rows[column].notna()]
            if gauge == "capacity":
                known = known[(known[column] > 0) & (known[column].diff() != 0)]
            for t_s, value in zip(known["start_s"], known[column], strict=True):
                events.gauge(gauge, t_s, value, channel=channel)


def _write_memory(events: _EventWriter, rows: pd.DataFrame) -> None:
    """Allocator figures as gauges."""
    gauges = {"reserved_gib": ("reserved_bytes", gib), "allocated_gib": ("allocated_bytes", gib)}
    for column, (name, factor) in {**gauges, "retries": ("alloc_retries", 1.0)}.items():
        known = rows[rows[f"alloc.{column}"].notna()]
        for t_s, value in zip(known["start_s"], known[f"alloc.{column}"], strict=True):
            events.gauge(name, t_s, value * factor)


def _write_compilations(events: _EventWriter, plan: _Plan) -> None:
    """Seconds over all threads become equal spans on each of them; the first target tells the count."""
    threads = [(stage, index) for stage, count in plan.threads.items() for index in range(count)]
    compiled = 0.0
    columns = ["start_s", "compile.recompiles", "compile.secs"]
    for t_s, count, seconds in plan.rows[columns].itertuples(index=False):
        if seconds > 0:
            for stage, index in threads:
                end_s = t_s + seconds / len(threads)
                events.span(stage, index, "compile", t_s, end_s, device=plan.device(stage, index))
        if count > 0:
            compiled += count
            events.gauge("recompiles", t_s, compiled, stage="target")


def _write_samples(run: RunDir, trace: MetricsTrace, plan: _Plan) -> None:
    threads = [
        f"{_tids[stage] + index}:{stage} {index}"
        for stage, count in plan.threads.items()
        for index in range(count)
    ]
    logs: dict[str, ArrowLog] = {}
    try:
        for reading in read_samples(trace, plan.gpu_names, threads):
            t_s, source, key, metric, value, reason = reading
            if source not in logs:
                logs[source] = ArrowLog(run.samples / f"{source}.arrow", sample_schema)
            logs[source].append((nanoseconds(t_s), source, key, metric, value, reason))
    finally:
        for log in logs.values():
            log.close()
