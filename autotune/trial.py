"""One measured configuration: what was asked, what came of it, and its JSON form.

A trial is never changed, only replaced by a later form of itself. The same JSON is kept in the study's
storage and, as trial.json, in the trial's own directory. Knows nothing of how trials are chosen or run.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from autotune.telemetry import (
    Cause,
    Failed,
    FailureKind,
    MemoryFigures,
    Outcome,
    Telemetry,
    Values,
    find_nonsense,
    without_nonsense,
)


class TrialState(StrEnum):
    """Where a trial stands. Only finished and failed ones count as tried."""

    running = "running"
    finished = "finished"  # it ran to its end and was measured; whether it is healthy is said beside it
    failed = "failed"  # the configuration could not be measured, for a reason
    killed = "killed"  # the search died during it; it is run once more, and is failed when that dies too
    interrupted = "interrupted"  # the user stopped the search during it; it is run again

    @property
    def is_over(self) -> bool:
        return self in (TrialState.finished, TrialState.failed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What was expected of a trial before it ran."""

    tokens_per_s: float
    low: float | None = None  # 90 % interval
    high: float | None = None
    fits: float | None = None  # chance that it fits into memory, 0..1


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One configuration, tried once. `run_path` is relative to the study's directory."""

    number: int
    values: Values
    why: str  # why this configuration was tried
    state: TrialState = TrialState.running
    run_path: str
    seconds: float  # of training it is given
    started_utc: str
    ended_utc: str | None = None
    repeat_of: int | None = None  # the trial whose configuration is measured again
    retry_of: int | None = None  # the killed or interrupted trial in whose place it runs
    measurement: Telemetry | None = None  # of a finished trial
    unhealthy: str | None = None  # why a finished trial must not win; None: healthy
    failure: FailureKind | None = None
    reason: str | None = None  # in words: why it failed or was stopped
    memory: Mapping[str, MemoryFigures] = field(default_factory=dict)  # what a failed one had taken
    predicted: Prediction | None = None  # before it ran
    fresh: bool = False  # asked for: a process of its own, nothing reused
    soak: bool = False  # asked for: the worst mix of lengths, to see the memory's peak
    beside: Values | None = None  # asked for: interleaved with this configuration
    spent_s: float | None = None  # wall time from start to end; None: it is not over

    @property
    def is_candidate(self) -> bool:
        """True when its throughput may be compared: finished in full, healthy, over ordinary data."""
        return (
            self.measurement is not None
            and self.unhealthy is None
            and self.measurement.stopped_early is None
            and not self.soak
        )

    @property
    def tokens_per_s(self) -> float | None:
        """The measured throughput, also of an unhealthy trial; None when there is none."""
        return None if self.measurement is None else self.measurement.tokens_per_s

    @property
    def score(self) -> float:
        """What searchers maximise: the throughput, and 0 for anything that may not win."""
        return self.measurement.tokens_per_s if self.measurement and self.is_candidate else 0.0

    @property
    def cause(self) -> Cause | None:
        """What limited it most, as far as diagnosis could say."""
        causes = self.measurement.causes if self.measurement else ()
        return causes[0] if causes else None

    @property
    def complaint(self) -> str | None:
        """Why it may not win, without what differs from trial to trial of the same fault; None if it may."""
        if self.unhealthy is not None:
            return f"unhealthy: {self.unhealthy}"
        if self.state is not TrialState.failed:
            return None
        if self.failure is FailureKind.out_of_memory:
            return str(self.failure)  # the message names the bytes of the one allocation that failed
        return f"{self.failure}: {(self.reason or 'no reason given').splitlines()[0]}"

    def replacing(self, **changes: Any) -> Trial:
        return dataclasses.replace(self, **changes)

    def to_json(self) -> dict[str, Any]:
        """Strict JSON (`from_json` reads it back)."""
        plain: dict[str, Any] = _plain(dataclasses.asdict(self))
        return plain

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Trial:
        """The trial that `to_json` described. Raises KeyError, TypeError or ValueError on anything else."""
        measured, failure, predicted = (data.get(name) for name in ("measurement", "failure", "predicted"))
        return cls(
            **{
                **data,
                "state": TrialState(data["state"]),
                "failure": None if failure is None else FailureKind(failure),
                "measurement": None if measured is None else Telemetry.from_json(measured),
                "memory": {name: MemoryFigures(**each) for name, each in data.get("memory", {}).items()},
                "predicted": None if predicted is None else Prediction(**predicted),
            }
        )

    def judged(self, outcome: Outcome) -> Trial:
        """The trial with its outcome: finished or failed, for a stated reason. Health is not looked at."""
        if isinstance(outcome, Telemetry):
            try:
                cleaned = without_nonsense(outcome)
                nonsense = find_nonsense(cleaned)
            except TypeError as error:  # None or text where a number should be
                nonsense = Failed(FailureKind.no_measurement, f"figures that are no numbers: {error}")
            if nonsense is None:
                return self.replacing(state=TrialState.finished, measurement=cleaned)
            outcome = nonsense
        return self.replacing(
            state=TrialState.failed,
            failure=_kind_of(outcome.kind),
            reason=outcome.reason,
            memory=outcome.memory,
        )


def _kind_of(kind: str) -> FailureKind:
    """The kind as told, or by its name or words."""
    names = FailureKind.__members__
    return (
        names[kind] if kind in names else FailureKind(kind) if kind in set(FailureKind) else FailureKind.error
    )


def _plain(value: Any) -> Any:
    """As strict JSON: numbers of other libraries are numbers, and those that are not finite are unknown."""
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    return _plain(value.item()) if hasattr(value, "item") else str(value)
