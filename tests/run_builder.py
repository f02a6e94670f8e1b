"""Writes a real run directory from given times, through the contract, for tests of what reads runs.

Times are seconds since the run's start. Every stage thread gets a native thread id of its own.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dflash.contract.arrowlog import ArrowLog
from dflash.contract.config import TrainConfig
from dflash.contract.events import event_schema, sample_schema
from dflash.contract.rundir import RunDir, create_run

start_ns = 5_000_000_000_000  # a machine that has been up for a while
_tids = {"trainer": 100, "prefetch": 200, "target": 300, "drafter": 400, "link": 900}


class RunBuilder:
    """One run being written. `finish` closes it; events may come in any order."""

    def __init__(
        self, path: Path, config: TrainConfig | None = None, *, emulated: bool | None = True
    ) -> None:
        self.run = create_run(path, command=["dflash-train", "run"])
        self._config, self._emulated = config, emulated
        self._events = ArrowLog(self.run.events / "trainer.arrow", event_schema)
        self._samples: dict[str, ArrowLog] = {}

    def span(self, stage: str, index: int, name: str, begin_s: float, end_s: float, **fields: Any) -> None:
        """Something that took from `begin_s` to `end_s`. Fields are columns of the event schema."""
        begin, end = nanoseconds(begin_s), nanoseconds(end_s)
        self.event("span", name, stage, index, t_ns=begin, dur_ns=end - begin, **fields)

    def mark(self, stage: str, index: int, name: str, at_s: float, **fields: Any) -> None:
        self.event("mark", name, stage, index, t_ns=nanoseconds(at_s), **fields)

    def gauge(self, stage: str, index: int, name: str, at_s: float, value: float, **fields: Any) -> None:
        self.event("gauge", name, stage, index, t_ns=nanoseconds(at_s), value=value, **fields)

    def window(self, number: int, at_s: float, tokens: int | None, **note: Any) -> None:
        """The end of an optimizer step."""
        self.mark("trainer", 0, "window", at_s, window=number, tokens=tokens, note=json.dumps(note))

    def event(self, kind: str, name: str, stage: str, index: int, **fields: Any) -> None:
        """One row; anything not given is as a stage thread on its logical device would have it."""
        row: dict[str, Any] = {
            "dur_ns": None,
            "device": "cpu" if stage in ("trainer", "prefetch") else f"logical:{stage}{index}",
            "clock": "host",
            "tid": _tids.get(stage, 1000) + index,
        }
        row |= {"kind": kind, "name": name, "stage": stage, "index": index, **fields}
        self._events.append(tuple(row.get(column) for column in event_schema.names))

    def sample(
        self, source: str, key: str, metric: str, at_s: float, value: float | None, reason: str | None = None
    ) -> None:
        """A reading of a sampler."""
        if source not in self._samples:
            self._samples[source] = ArrowLog(self.run.samples / f"{source}.arrow", sample_schema)
        self._samples[source].append((nanoseconds(at_s), source, key, metric, value, reason))

    def finish(self, status: str = "finished", **manifest: Any) -> Path:
        """Close the streams and complete run.json; the run's path."""
        for log in (self._events, *self._samples.values()):
            log.close()
        values = None if self._config is None else self._config.values()
        clock = {"utc_ns": 0, "monotonic_ns": start_ns, "boot_id": None}
        changes = {"status": status, "config": values, "emulated": self._emulated, "clock": clock, **manifest}
        RunDir(self.run.path).update(**changes)
        return self.run.path


def nanoseconds(at_s: float) -> int:
    """Seconds since the run's start on the run's monotonic clock."""
    return start_ns + round(at_s * 1e9)
