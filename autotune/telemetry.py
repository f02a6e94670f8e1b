"""What a run of one configuration has shown: the outcome that a runner returns.

Only `tokens_per_s` is required. None means not known, and is never written as 0; whoever reads does without.
Knows nothing of how a run was made, nor of what is done with its figures.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

Values = Mapping[str, Any]  # {dotted path: value} of the searched knobs, every one of them


class FailureKind(StrEnum):
    """What kind of failure, as far as the search has to know."""

    out_of_memory = "out of memory"
    timeout = "timeout"  # it took longer than it may in all
    hang = "hang"  # it ran, and no window ended for a stated time
    nan = "not a number"  # the loss or the throughput was no finite number
    crash = "crash"  # ended by a signal
    lost_gpu = "lost GPU"  # the card is gone: nothing will run on it until somebody resets it
    driver_error = "driver error"  # the driver or a kernel failed; the card is still there
    refused = "refused"  # the trainer called the request impossible (exit 2)
    error = "error"  # any other exit code, or an exception of the runner
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
class StageFigures:
    """One kind of stage over a run, means of its threads."""

    busy_s: float  # own work of one batch
    tokens: float  # of one batch
    batches: int = 1  # behind the means
    get_wait_share: float | None = None  # of its threads' time, 0..1
    put_wait_share: float | None = None
    copy_share: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyFigures:
    """One copy of one batch's hidden states, mean."""

    bytes: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFigures:
    """Memory of one place."""

    peak_bytes: float
    limit_bytes: float | None = None  # what there is
    planned_bytes: float | None = None  # what arithmetic said before


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """The same run interleaved with another configuration (A B B A in one process)."""

    values: Values  # of the other
    log_ratio: float  # log(ours / theirs)
    deviation: float  # its standard error


@dataclass(frozen=True, slots=True, kw_only=True)
class Telemetry:
    """What a run that ended well has shown."""

    tokens_per_s: float
    low: float | None = None  # 90 % interval within the run
    high: float | None = None
    windows: int | None = None  # behind the figure, warm-up excluded
    steps: int | None = None  # optimizer steps taken in all
    supervised_tokens: int | None = None
    losses: tuple[float | None, ...] = ()  # of the first windows, in order; an entry None: no finite number
    stages: Mapping[str, StageFigures] = field(default_factory=dict)  # prefetch, target, drafter
    copies: Mapping[str, CopyFigures] = field(default_factory=dict)  # by hop, as in profiler.forecast.model
    step_s: float | None = None  # sum and optimizer step of one window
    window_tokens: float | None = None
    token_bytes: float | None = None  # hidden states of one token
    memory: Mapping[str, MemoryFigures] = field(default_factory=dict)  # by place: `cuda:0`, `host`
    energy_j_per_token: float | None = None
    startup_s: float | None = None  # before the first window began
    causes: tuple[Cause, ...] = ()  # dearest first
    verdict: str | None = None  # diagnosis in one line
    efficiency: float | None = None  # pipeline efficiency, 0..1
    waits: tuple[tuple[str, float], ...] = ()  # (`drafter 0 get`, share of its time), largest first
    beside: Beside | None = None
    stopped_early: str | None = None  # why it was ended before its time: it may not win

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Telemetry:
        """The telemetry that dataclasses.asdict described. Raises KeyError, TypeError or ValueError."""
        beside = data.get("beside")
        return cls(
            **{
                **data,
                "losses": tuple(data.get("losses", ())),
                "stages": {name: StageFigures(**each) for name, each in data.get("stages", {}).items()},
                "copies": {name: CopyFigures(**each) for name, each in data.get("copies", {}).items()},
                "memory": {name: MemoryFigures(**each) for name, each in data.get("memory", {}).items()},
                "causes": tuple(Cause(**cause) for cause in data.get("causes", ())),
                "waits": tuple((str(name), float(share)) for name, share in data.get("waits", ())),
                "beside": None if beside is None else Beside(**beside),
            }
        )


@dataclass(frozen=True, slots=True)
class Failed:
    """A run that could not be measured."""

    kind: FailureKind
    reason: str  # for people
    memory: Mapping[str, MemoryFigures] = field(default_factory=dict)  # what it had taken, where known


Outcome = Telemetry | Failed


def find_nonsense(measured: Telemetry) -> Failed | None:
    """Why the figures cannot be a measurement: they would crash, or win, where they are compared."""
    if measured.steps is not None and measured.steps <= 0:
        reason = f"no optimizer step was taken (a throughput of {measured.tokens_per_s} was given)"
        return Failed(FailureKind.no_measurement, reason, measured.memory)
    known = [measured.tokens_per_s, *(f for f in (measured.low, measured.high) if f is not None)]
    if not all(math.isfinite(figure) and figure > 0 for figure in known):
        reason = f"the throughput is {measured.tokens_per_s} ({measured.low} to {measured.high})"
        kind = FailureKind.nan if math.isnan(measured.tokens_per_s) else FailureKind.no_measurement
        return Failed(kind, reason, measured.memory)
    if None in measured.losses:
        at = measured.losses.index(None)
        return Failed(FailureKind.nan, f"the loss is not a finite number at step {at}", measured.memory)
    return None


def without_nonsense(measured: Telemetry) -> Telemetry:
    """The same with everything besides the throughput that is no finite number taken as not known.

    Losses that are no finite numbers become None entries: there they are a finding.
    """
    beside = measured.beside
    return dataclasses.replace(
        measured,
        losses=tuple(_finite(loss) for loss in measured.losses),
        stages=_known(measured.stages),
        copies=_known(measured.copies),
        memory=_known(measured.memory),
        step_s=_finite(measured.step_s),
        window_tokens=_finite(measured.window_tokens),
        token_bytes=_finite(measured.token_bytes),
        energy_j_per_token=_finite(measured.energy_j_per_token),
        startup_s=_finite(measured.startup_s),
        efficiency=_finite(measured.efficiency),
        waits=tuple(wait for wait in measured.waits if math.isfinite(wait[1])),
        beside=None if beside is None or not _is_sound(beside) else beside,
    )


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else value


def _known(figures: Mapping[str, Any]) -> dict[str, Any]:
    return {name: each for name, each in figures.items() if _is_sound(each)}


def _is_sound(figures: Any) -> bool:
    """True where every number of a dataclass is finite and, but for a logarithm, not negative."""
    for part in dataclasses.fields(figures):
        value = getattr(figures, part.name)
        if not isinstance(value, int | float):
            continue
        if not math.isfinite(value) or (value < 0 and part.name != "log_ratio"):
            return False
    return True
