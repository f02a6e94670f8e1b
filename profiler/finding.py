"""Findings and the Diagnosis they make up: cause, evidence, what to do. Strict JSON both ways.

An unknown value is None and carries the reason; a value that is not finite is refused. Knows nothing of how
a cause is found.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, Self

from dflash.contract.errors import RunError
from dflash.contract.rundir import RunDir, write_json
from profiler.capacity import Capacities
from profiler.hardware_limit import Limit
from profiler.records import RecordError, decode
from profiler.throughput import Throughput

Verdict = Literal["supported", "rejected", "not_enough_evidence"]
Scalar = str | int | float
schema_version: Final = 1
cost_name: Final = "throughput lost to it"  # the evidence that a headline tells already
_shown_numbers: Final = 5  # of a cause's evidence, on one line


@dataclass(frozen=True, slots=True)
class Evidence:
    """One number behind a finding."""

    name: str
    value: float | None
    unit: str  # "share" is 0 to 1; empty for counts
    text: str  # the value for people: "55 %", "n/a: why"
    reason: str | None = None  # why there is no value

    def __post_init__(self) -> None:
        _check_known(self.name, self.value, self.reason)


@dataclass(frozen=True, slots=True)
class Remedy:
    """What to change. `knobs` is what a search may try as it is; empty when no knob cures it."""

    text: str
    knobs: Mapping[str, Scalar] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A cause that was considered."""

    cause: str  # kebab-case, stable
    verdict: Verdict
    confidence: float  # 0 to 1, that the verdict is right
    summary: str
    range_s: tuple[float, float]  # since the run's start
    evidence: tuple[Evidence, ...]
    remedy: Remedy | None
    condition: str | None  # under which the remedy pays
    is_sickness: bool  # false: the cause describes a healthy run or the data
    measured_cost_share: float | None  # share of the throughput lost to it
    measured_cost_reason: str | None
    predicted_cost_s: float | None  # seconds a batch, by arithmetic from bytes and links
    predicted_cost_reason: str | None
    predicted_gain: float | None  # relative to now
    predicted_gain_reason: str | None

    def __post_init__(self) -> None:
        _check_known("measured_cost_share", self.measured_cost_share, self.measured_cost_reason)
        _check_known("predicted_cost_s", self.predicted_cost_s, self.predicted_cost_reason)
        _check_known("predicted_gain", self.predicted_gain, self.predicted_gain_reason)

    @property
    def supported(self) -> bool:
        return self.verdict == "supported"


@dataclass(frozen=True, slots=True)
class ClosingPart:
    """Where a part of a thread's time went."""

    kind: str  # work, copy, wait, gpu_wait, gil_wait, unaccounted
    name: str  # "forward", "get q_pre", "copy pageable"
    seconds: float
    share: float


@dataclass(frozen=True, slots=True)
class ClosingSum:
    """The whole of a thread's time; the parts add up to `range_s`."""

    stage: str
    index: int
    device: str
    tid: int
    range_s: float
    parts: tuple[ClosingPart, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What limits a run, in three sentences and all the findings behind them, most telling first."""

    headline: str
    why: str
    next_step: str
    findings: tuple[Finding, ...]
    throughput: Throughput
    capacities: Capacities
    closing_sums: tuple[ClosingSum, ...]
    limit: Limit  # what the hardware would allow
    emulated: bool | None  # true: logical devices, so times say nothing of GPUs
    warnings: tuple[str, ...]
    schema: int = schema_version

    @property
    def primary(self) -> Finding | None:
        """The first supported finding; None when no cause is named."""
        return next((finding for finding in self.findings if finding.supported), None)

    @property
    def numbers(self) -> str:
        """The first known numbers behind the cause that is named, on one line; empty where none is."""
        evidence = self.primary.evidence if self.primary is not None else ()
        known = [item for item in evidence if item.value is not None and item.name != cost_name]
        return "; ".join(f"{item.name}: {item.text}" for item in known[:_shown_numbers])

    def to_json(self) -> dict[str, Any]:
        """Plain values, ready for strict JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: object) -> Self:
        """The diagnosis that `to_json` gave. Raises RunError for anything else."""
        found = data.get("schema") if isinstance(data, dict) else None
        if found != schema_version:
            raise RunError(
                "not a diagnosis of this version",
                found=f"schema {found}",
                expected=f"schema {schema_version}",
            )
        try:
            return decode(cls, data)
        except (RecordError, ValueError) as error:
            raise RunError(f"the diagnosis is not sound: {error}") from None

    def save(self, run_path: Path) -> Path:
        """Write findings.json into the run at `run_path`."""
        path = RunDir(run_path).findings_path
        write_json(path, self.to_json())
        return path

    @classmethod
    def load(cls, run_path: Path) -> Self:
        """Read findings.json of the run at `run_path`. Raises RunError."""
        path = RunDir(run_path).findings_path
        try:
            return cls.from_json(json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            raise RunError("the run was not diagnosed yet", where=str(path)) from None
        except (OSError, ValueError, RecursionError) as error:
            raise RunError(f"findings.json cannot be read: {error}", where=str(path)) from None


def _check_known(name: str, value: float | None, reason: str | None) -> None:
    if value is None and not reason:
        raise ValueError(f"{name} is unknown without a reason")
    if value is not None and not math.isfinite(value):
        raise ValueError(f"{name} is {value}, which is not a finite number")
