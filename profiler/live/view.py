"""What the live view shows, as plain values: whoever draws it needs no more than this.

Times are seconds since the run's start. What is unknown is None and says why. Strings from the run are as
the run has them: drawing code escapes them. Knows nothing of how anything is found or drawn.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Final, Literal

schema_version: Final = 1
Mood = Literal["sick", "healthy", "unknown", "stalled", "failed"]


@dataclass(frozen=True, slots=True)
class Number:
    """One number, or why there is none."""

    value: float | None
    reason: str | None = None

    def __post_init__(self) -> None:
        if self.value is None and not self.reason:
            raise ValueError("a number is unknown without a reason")
        if self.value is not None and not math.isfinite(self.value):
            raise ValueError(f"a number is {self.value}, which is not a finite number")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """Which run, and how it is."""

    path: str
    command: tuple[str, ...]
    status: str  # as in run.json, but failed when its processes are gone; unknown: not to be told from here
    reason: str | None
    over: bool  # nothing more will come
    elapsed_s: float
    silent_s: float | None  # since anything was written; None: nothing was yet
    emulated: bool | None  # true: logical devices, so times say nothing of GPUs
    recorded: bool  # a recorder samples beside the trainer


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What limits the run over the last `range_s`, by the rules of a diagnosis."""

    mood: Mood
    headline: str
    why: str
    next_step: str
    cause: str | None  # as in a finding; None: none is named
    range_s: tuple[float, float] | None  # None: nothing was judged


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Tokens per second now: whole windows of the range, with a 90 % interval from ten steady ones on."""

    tokens_per_s: Number
    low: float | None
    high: float | None
    interval_reason: str | None
    windows: int  # in the range
    step: int | None  # optimizer steps made, of the run
    steps_planned: int | None
    loss: float | None
    accuracy: float | None
    window_s: float | None  # median length of a window
    last_window_s: float | None  # time since the last one ended
    series: tuple[tuple[float, float], ...]  # (end of a window, its tokens/s), oldest first; beyond the range


@dataclass(frozen=True, slots=True)
class Wait:
    """For whom a stage waited, in which wait, for which share of its time."""

    on: str  # prefetch, targets, drafters, the step, its turn, the GIL
    name: str  # "put q_hs", "gil_wait"
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRow:
    """One stage thread over the range, from its device's side. Shares add up to 1."""

    stage: str  # prefetch, target, drafter
    index: int
    device: str
    work: float
    copy: float
    waits: tuple[Wait, ...]  # largest first
    open: float  # what it has been at since its last span ended, which is known when that ends
    rest: float  # not accounted for
    ended: bool
    quiet_s: float  # since its last span ended


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRow:
    """One channel: how full now, and over the range."""

    name: str
    depth: int
    capacity: Number
    mean: float
    full_share: float | None  # of the time; None without a capacity
    empty_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRow:
    """One GPU, or one logical device, with what it does in the run."""

    name: str  # cuda:0, logical:0, or the model's name when the run does not use it
    uuid: str | None
    role: str  # "target 0", "target 0 + drafter 0", "not used"
    util: Number  # share of time with a kernel resident, which is not how much was done
    sm_active: Number  # share of the SMs at work
    power_w: Number
    power_limit_w: Number
    memory_bytes: Number
    memory_total_bytes: Number
    temperature_c: Number


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadRow:
    """One thread over the range; shares of its time."""

    name: str  # "target 0" for a stage thread, else the thread's own name and native id
    cpu: Number
    gil_wait: Number
    cpu_wait: Number  # ready to run while no CPU was free
    gil_hold: Number


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Memory of the host: of the run's processes, and what limits them."""

    anon_bytes: Number
    shared_bytes: Number
    file_bytes: Number
    limit_bytes: Number  # the lesser of machine and cgroup
    available_bytes: Number  # on the machine
    series: tuple[tuple[float, float], ...]  # (time, resident bytes)

    @property
    def resident_bytes(self) -> float | None:
        """Anonymous and shared memory, which is what a limit kills for; None when unknown."""
        parts = [self.anon_bytes.value, self.shared_bytes.value]
        return None if parts[0] is None else sum(part for part in parts if part is not None)


@dataclass(frozen=True, slots=True)
class JournalRow:
    """Something that happened."""

    at_s: float
    kind: str  # window, checkpoint, warning, start, stop, …
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveView:
    """A run as it is now."""

    run: RunState
    range_s: tuple[float, float] | None  # what shares and means are about; None: nothing was written yet
    verdict: Verdict
    pace: Pace
    stages: tuple[StageRow, ...]
    queues: tuple[QueueRow, ...]
    limit: str | None  # the stage that allows least, where that is known
    gpus: tuple[GpuRow, ...]
    gpus_reason: str | None  # why there are none
    threads: tuple[ThreadRow, ...]
    threads_reason: str | None
    memory: Memory
    journal: tuple[JournalRow, ...]
    warnings: tuple[str, ...]  # what the figures leave out
    schema: int = schema_version

    def to_json(self) -> dict[str, Any]:
        """Plain values, ready for strict JSON."""
        return dataclasses.asdict(self)
