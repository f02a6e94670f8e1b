"""Drafter steps of one or several trainers timed in turns on one device, and their peak memory.

Contenders take turns round by round, so that clocks, heat and neighbours change for all of them alike.
Knows nothing of what a contender computes.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from benchmarks.result_file import summary
from dflash.devices import Device


class Contender(Protocol):
    """One trainer, holding its own weights and optimizer state."""

    name: str

    def train(self) -> None:
        """Forward, loss and backward of the case's batch."""

    def complete(self) -> None:
        """Clip and step from the gradients of `train`."""

    def take_gradients(self) -> tuple[float, dict[str, Tensor]]:
        """Loss of the last `train` and its gradients by our parameter names, float32, cleared here."""


@dataclass(slots=True)
class Timings:
    """What was measured of one contender; milliseconds, one entry a step."""

    own_bytes: int | None  # what it keeps on the device between steps; None: the CPU counts nothing
    step_ms: list[float] = field(default_factory=list)
    train_ms: list[float] = field(default_factory=list)
    complete_ms: list[float] = field(default_factory=list)
    round_ms: list[float] = field(default_factory=list)  # median step of each round
    peak_bytes: int | None = None  # of a step, without what other contenders keep
    warm_up_s: float = 0.0

    def describe(self, tokens: int, flops: float) -> dict[str, Any]:
        """Medians and rates of a step of `tokens` context tokens that needs `flops` operations."""
        step = summary(self.step_ms)
        seconds = float(step["median"]) / 1e3
        return {
            "step_ms": step,
            "train_ms": summary(self.train_ms),
            "complete_ms": summary(self.complete_ms),
            "context_tokens_per_s": round(tokens / seconds, 1),
            "model_tflop_per_s": round(flops / seconds / 1e12, 3),
            "peak_gb": _gigabytes(self.peak_bytes),
            "kept_gb": _gigabytes(self.own_bytes),
            "warm_up_s": round(self.warm_up_s, 1),
        }


def _gigabytes(count: int | None) -> float | None:
    return None if count is None else round(count / 1e9, 3)


def _difference(after: int | None, before: int | None) -> int | None:
    return None if after is None or before is None else after - before


class Contest:
    """All contenders on one device."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.contenders: list[Contender] = []
        self.timings: list[Timings] = []

    def enter(self, build: Callable[[], Contender]) -> Contender:
        """Build a contender."""
        before = self._allocated()
        contender = build()
        self.contenders.append(contender)
        self.timings.append(Timings(_difference(self._allocated(), before)))
        return contender

    def warm_up(self, steps: int) -> None:
        """The first steps of all, which compile and allocate what each keeps."""
        for contender, timings in zip(self.contenders, self.timings, strict=True):
            before, start_s = self._allocated(), time.monotonic()
            for _ in range(steps):
                self._step(contender, Timings(None))
            timings.warm_up_s = time.monotonic() - start_s
            gc.collect()
            grown = _difference(self._allocated(), before)
            if timings.own_bytes is not None and grown is not None:
                timings.own_bytes += grown

    def run(self, rounds: int, steps: int) -> None:
        """`rounds` rounds in which every contender takes `steps` steps."""
        for _ in range(rounds):
            for contender, timings in zip(self.contenders, self.timings, strict=True):
                self._round(contender, timings, steps)

    def _round(self, contender: Contender, timings: Timings, steps: int) -> None:
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        first = len(timings.step_ms)
        for _ in range(steps):
            self._step(contender, timings)
        timings.round_ms.append(float(summary(timings.step_ms[first:])["median"]))
        if torch.cuda.is_available():
            others = sum(other.own_bytes or 0 for other in self.timings if other is not timings)
            peak = torch.cuda.max_memory_allocated() - others
            timings.peak_bytes = max(timings.peak_bytes or 0, peak)

    def _step(self, contender: Contender, timings: Timings) -> None:
        start_ns = time.monotonic_ns()
        training = self._device.start_timing()
        contender.train()
        between_ns = time.monotonic_ns()
        if training is not None:
            training.stop()
        completing = self._device.start_timing()
        contender.complete()
        if completing is not None:
            completing.stop()
        self._device.record().wait()
        end_ns = time.monotonic_ns()
        timings.step_ms.append((end_ns - start_ns) / 1e6)
        for series, timing, host_ns in (
            (timings.train_ms, training, (start_ns, between_ns)),
            (timings.complete_ms, completing, (between_ns, end_ns)),
        ):
            began_ns, ended_ns = host_ns if timing is None else timing.ends_ns()
            series.append((ended_ns - began_ns) / 1e6)

    def _allocated(self) -> int | None:
        self._device.record().wait()
        return torch.cuda.memory_allocated() if torch.cuda.is_available() else None


def speed_ratio(ours: Timings, theirs: Timings) -> dict[str, float | int]:
    """How many times our speed is theirs: median, smallest and largest over rounds."""
    return summary([b / a for a, b in zip(ours.round_ms, theirs.round_ms, strict=True)])


def start_afresh() -> None:
    """Give back what no tensor holds any more, and forget compiled shapes.

    Else torch.compile would take a second case's shapes for changing ones and compile slower kernels.
    """
    torch.compiler.reset()
    free_memory()


def free_memory() -> None:
    """Give back what no tensor holds any more."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def kernel_table(step: Callable[[], None], limit: int = 40) -> tuple[str, dict[str, float]]:
    """The kernels of one call of `step` as text, largest first, and sums in milliseconds.

    On the CPU operators take the place of kernels.
    """
    from torch.profiler import ProfilerActivity, profile

    cuda = torch.cuda.is_available()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    with profile(activities=activities) as recording:
        start_ns = time.monotonic_ns()
        step()
        if cuda:
            torch.cuda.synchronize()
        wall_ms = (time.monotonic_ns() - start_ns) / 1e6
    rows = _kernel_rows(recording.key_averages(), cuda)
    total_ms = sum(ms for ms, _, _ in rows)
    lines = [f"{'ms':>9} {'share':>6} {'count':>6}  kernel"]
    lines += [f"{ms:9.3f} {ms / total_ms:6.1%} {count:6}  {name}" for ms, count, name in rows[:limit]]
    if rows[limit:]:
        rest = sum(ms for ms, _, _ in rows[limit:])
        count = sum(count for _, count, _ in rows[limit:])
        lines.append(f"{rest:9.3f} {rest / total_ms:6.1%} {count:6}  {len(rows) - limit} others")
    lines.append(f"{total_ms:9.3f} {1:6.1%} {sum(count for _, count, _ in rows):6}  all kernels")
    sums = {"kernels_ms": round(total_ms, 3), "wall_ms_while_profiled": round(wall_ms, 3)}
    return "\n".join(lines) + "\n", sums


def _kernel_rows(events: Sequence[Any], cuda: bool) -> list[tuple[float, int, str]]:
    """(milliseconds, count, name), largest first."""
    rows = []
    for event in events:
        if cuda and (
            not str(event.device_type).endswith("CUDA") or getattr(event, "is_user_annotation", False)
        ):
            continue
        us = event.self_device_time_total if cuda else event.self_cpu_time_total
        if us > 0 and not event.key.startswith("Optimizer.step#"):  # a name for kernels that are there, too
            rows.append((us / 1e3, int(event.count), str(event.key)[:200]))
    return sorted(rows, reverse=True)
