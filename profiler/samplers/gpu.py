"""Samples what GPUs say of themselves: one series for each device and metric.

A metric that a device does not support yields one row with the reason and is not asked for again. One that
stops answering leaves a gap: one row with the reason, then a new attempt every half minute. What hardly ever
changes is written when it changes. Knows nothing of NVML or of the trainer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from dflash.contract.errors import UsageError, nearest
from profiler.samplers.base import Reading, Sampler, retry_s
from profiler.samplers.nvml import NvmlSensors
from profiler.samplers.replay import ReplaySensors
from profiler.samplers.sensors import GpuDevice, GpuSensors, Unreadable, gpu_metrics

written_on_change = {"mem_total_bytes", "power_limit_w", "unified_mem_total_bytes"}
unified_metrics = ("unified_mem_used_bytes", "unified_mem_total_bytes")


def open_sensors(choice: str) -> GpuSensors | None:
    """The sensors behind `auto`, `none` (None) or `replay:FILE`. Raises UsageError."""
    if choice == "none":
        return None
    if choice == "auto":
        return NvmlSensors()
    kind, _, path = choice.partition(":")
    if kind == "replay" and path:
        return ReplaySensors(Path(path))
    near = nearest(choice, ("auto", "none"))
    raise UsageError(
        f"{choice!r} is not a source of GPU readings",
        where="--gpu",
        expected="auto, none or replay:FILE",
        remedy=f"did you mean {near!r}?" if near else None,
    )


class _Series:
    """One metric of one device: when to ask for it, and what of the answers to write down."""

    def __init__(self, metric: str) -> None:
        self._on_change = metric in written_on_change
        self._last: float | None = None
        self._ask_after_s: float | None = 0.0  # None: never again
        self.broken: str | None = None  # why it stopped answering after it once did, or never began
        self.answering = True

    def is_due(self, now_s: float) -> bool:
        return self._ask_after_s is not None and now_s >= self._ask_after_s

    def take(self, answer: float | Unreadable, now_s: float) -> tuple[float | None, str | None] | None:
        """Value and reason to write, or None when there is nothing new to say."""
        if isinstance(answer, Unreadable):
            self._ask_after_s = None if answer.permanent else now_s + retry_s
            is_news = self.answering
            self.answering = False
            if not answer.permanent:
                self.broken = answer.reason
            return (None, answer.reason) if is_news else None
        is_news = not (self._on_change and self._last == answer and self.answering)
        self._last, self.answering = answer, True
        return (answer, None) if is_news else None


class GpuSampler(Sampler):
    """Rows keyed by GPU or MIG uuid."""

    name = "gpu"
    metrics = (*gpu_metrics, *unified_metrics)

    def __init__(
        self, sensors: GpuSensors, interval_s: float = 0.1, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.interval_s = interval_s
        self._sensors, self._clock = sensors, clock
        self._series: dict[tuple[str, str], _Series] = {}
        self._reopen_after_s: float | None = None

    def open(self) -> str | None:
        reason = self._sensors.open()
        self._reopen_after_s = self._clock() + retry_s
        return reason

    def sample(self) -> Iterator[Reading]:
        now_s = self._clock()
        if self._all_silent() and self._reopen_after_s is not None and now_s >= self._reopen_after_s:
            self._reopen_after_s = now_s + retry_s
            if self._sensors.open() is not None:
                return
        for index, device in enumerate(self._sensors.devices()):
            yield from self._sample_device(index, device, now_s)
            if device.unified_memory:
                yield from self._sample_unified(device)

    def close(self) -> Iterator[Reading]:
        self._sensors.close()
        return iter(())

    def _sample_device(self, index: int, device: GpuDevice, now_s: float) -> Iterator[Reading]:
        due = [m for m in gpu_metrics if self._series_of(device, m).is_due(now_s)]
        if not due:
            return
        t_ns = time.monotonic_ns()
        for metric, answer in zip(due, self._sensors.read(index, due), strict=True):
            series = self._series_of(device, metric)
            news = series.take(answer, now_s)
            if series.broken and self.warning is None:
                self.warning = f"{device.key}: {metric} stopped answering: {series.broken}"
            if news is not None:
                yield Reading(t_ns, device.key, metric, *news)

    def _sample_unified(self, device: GpuDevice) -> Iterator[Reading]:
        memory, t_ns = self._sensors.system_memory(), time.monotonic_ns()
        answers: list[float | Unreadable] = [Unreadable("the host's memory is unknown", permanent=True)] * 2
        if memory is not None:
            total, available = memory
            answers = [float(total - available), float(total)]
        for metric, answer in zip(unified_metrics, answers, strict=True):
            news = self._series_of(device, metric).take(answer, self._clock())
            if news is not None:
                yield Reading(t_ns, device.key, metric, *news)

    def _series_of(self, device: GpuDevice, metric: str) -> _Series:
        return self._series.setdefault((device.key, metric), _Series(metric))

    def _all_silent(self) -> bool:
        drivers = [series for (_, metric), series in self._series.items() if metric in gpu_metrics]
        return bool(drivers) and not any(series.answering for series in drivers)
