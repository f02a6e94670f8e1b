"""One measured configuration: what was asked, what came of it, and its JSON form.

A trial is never changed, only replaced by a later form of itself. The same JSON is kept in the study's
storage and, as trial.json, in the trial's own directory. Knows nothing of how trials are chosen or run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


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


class FailureKind(StrEnum):
    """What kind of failure, as far as the search has to know."""

    out_of_memory = "out of memory"
    timeout = "timeout"
    crash = "crash"  # ended by a signal
    refused = "refused"  # the trainer called the request impossible (exit 2)
    error = "error"  # any other exit code
    too_short = "too short"  # it ended well with too few windows for a throughput
    data_used_up = "data used up"  # likewise, and no longer trial would have more: all epochs were trained
    abandoned = "abandoned"  # the search died during it, and again when it was run once more
    no_measurement = "no measurement"  # it ended well and its figures make no sense


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """What diagnosis found to limit a trial, reduced to what the search uses and shows."""

    name: str  # stable, kebab-case
    summary: str
    remedy: Mapping[str, Any] = field(default_factory=dict)  # {dotted path: value}; empty: no knob cures it


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What a run that ended well has shown."""

    tokens_per_s: float
    low: float  # 90 % interval within the run
    high: float
    windows: int  # behind the figure, warm-up excluded
    steps: int  # optimizer steps taken in all
    supervised_tokens: int
    losses: tuple[float | None, ...]  # of the first windows, in order; None: not a finite number
    causes: tuple[Cause, ...] = ()  # dearest first
    verdict: str | None = None  # diagnosis in one line
    efficiency: float | None = None  # pipeline efficiency, 0..1
    waits: tuple[tuple[str, float], ...] = ()  # (`drafter 0 get`, share of its time), largest first


@dataclass(frozen=True, slots=True)
class Failed:
    """A run that could not be measured."""

    kind: FailureKind
    reason: str  # for people


Outcome = Measurement | Failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One configuration, tried once. `run_path` is relative to the study's directory."""

    number: int
    values: Mapping[str, Any]  # {dotted path: value} of the searched knobs
    why: str  # why this configuration was tried
    state: TrialState = TrialState.running
    run_path: str
    seconds: float  # of training it is given
    started_utc: str
    ended_utc: str | None = None
    repeat_of: int | None = None  # the trial whose configuration is measured again
    retry_of: int | None = None  # the killed or interrupted trial in whose place it runs
    measurement: Measurement | None = None  # of a finished trial
    unhealthy: str | None = None  # why a finished trial must not win; None: healthy
    failure: FailureKind | None = None
    reason: str | None = None  # in words: why it failed or was stopped

    @property
    def is_candidate(self) -> bool:
        """True when its throughput may be compared: finished and healthy."""
        return self.measurement is not None and self.unhealthy is None

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
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Trial:
        """The trial that `to_json` described. Raises KeyError, TypeError or ValueError on anything else."""
        measured = data["measurement"]
        failure = data["failure"]
        return cls(
            **{
                **data,
                "state": TrialState(data["state"]),
                "failure": None if failure is None else FailureKind(failure),
                "measurement": None if measured is None else _measurement(measured),
            }
        )


def _measurement(data: Mapping[str, Any]) -> Measurement:
    causes = tuple(Cause(**cause) for cause in data["causes"])
    waits = tuple((str(name), float(share)) for name, share in data["waits"])
    return Measurement(**{**data, "causes": causes, "losses": tuple(data["losses"]), "waits": waits})
