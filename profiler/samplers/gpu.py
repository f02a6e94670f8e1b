"""Samples what GPUs say of themselves: one series for each device and metric, each at a pace of its own.

A metric that a device never answered, and says it cannot, yields one row with the reason and is not asked for
again. One that stops answering leaves a gap: one row with the reason, then a new attempt every half minute.
What hardly ever changes is written when it changes. Knows nothing of NVML or of the trainer.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from dflash.contract.errors import UsageError, nearest
from profiler.samplers.base import Reading, Sampler, retry_s
from profiler.samplers.gpu_processes import own_and_foreign_bytes
from profiler.samplers.metrics import (
    drain_s,
    gpu_metrics,
    metric_table,
    power_samples,
    process_metrics,
    slow_s,
    tick_s,
)
from profiler.samplers.nvml import NvmlSensors
from profiler.samplers.replay import ReplaySensors
from profiler.samplers.sensors import Answer, GpuDevice, GpuSensors, Unreadable

used_metric = "mem_used_bytes"
unified_metrics = ("unified_mem_used_bytes", "unified_mem_total_bytes")
patient_drains = 3  # without a sample, before the driver counts as having none
no_samples = Unreadable("the driver keeps no power samples", permanent=True)
choices = "nvml, none or replay:FILE"


def open_sensors(choice: str, where: str = "sensors.gpu") -> GpuSensors | None:
    """The sensors behind `nvml`, `none` (None) or `replay:FILE`. Raises UsageError."""
    if choice == "none":
        return None
    if choice == "nvml":
        return NvmlSensors()
    kind, _, path = choice.partition(":")
    if kind == "replay" and path:
        return ReplaySensors(Path(path))
    near = nearest(choice, ("nvml", "none"))
    raise UsageError(
        f"{choice!r} is not a source of GPU readings",
        where=where,
        expected=choices,
        remedy=f"did you mean {near!r}?" if near else None,
    )


class _Series:
    """One metric of one device: when to ask for it, and what of the answers to write down."""

    def __init__(self, interval_s: float | None = 0.0, *, on_change: bool = False) -> None:
        """`interval_s` of None: asked for only when that is said."""
        self._interval_s, self._on_change = interval_s, on_change
        self._last: float | None = None
        self._ask_after_s: float | None = 0.0  # None: never again
        self.broken: str | None = None  # why it stopped answering after it once did, or never began
        self.answering: bool | None = None  # None: not asked yet

    def is_due(self, now_s: float, *, at_end: bool = False) -> bool:
        if self._ask_after_s is None:
            return False
        if at_end:
            return self.answering is not False
        return self.answering is None if self._interval_s is None else now_s >= self._ask_after_s

    def take(self, answer: Answer, now_s: float) -> tuple[float | None, str | None] | None:
        """Value and reason to write, or None when there is nothing new to say."""
        if isinstance(answer, Unreadable):
            never = answer.permanent and self._last is None
            self._ask_after_s = None if never else now_s + retry_s
            if not never:
                self.broken = answer.reason
            is_news, self.answering = self.answering is not False, False
            return (None, answer.reason) if is_news else None
        self._ask_after_s = now_s + (self._interval_s or 0.0)
        if answer is None:
            return None
        is_news = not (self._on_change and self._last == answer and self.answering)
        self._last, self.answering = answer, True
        return (answer, None) if is_news else None


class GpuSampler(Sampler):
    """Rows keyed by GPU or MIG uuid. `is_own` tells whether a pid belongs to this run."""

    name = "gpu"
    metrics = (*gpu_metrics, power_samples, *process_metrics, *unified_metrics)

    def __init__(
        self,
        sensors: GpuSensors,
        interval_s: float = tick_s,
        clock: Callable[[], float] = time.monotonic,
        is_own: Callable[[int], bool] = lambda pid: pid == os.getpid(),
    ) -> None:
        self.interval_s = interval_s
        self._sensors, self._clock, self._is_own = sensors, clock, is_own
        self._series: dict[tuple[str, str], _Series] = {}
        self._readable: dict[str, list[tuple[str, _Series]]] = {}  # by device: what `read` may be asked for
        self._reopen_after_s: float | None = None
        self._used: dict[str, Answer] = {}  # the latest memory in use, by device
        self._empty_drains: Counter[str] = Counter()
        self._is_open = False

    def open(self) -> str | None:
        reason = self._sensors.open()
        self._reopen_after_s = self._clock() + retry_s
        self._is_open = reason is None
        return reason

    def sample(self) -> Iterator[Reading]:
        now_s = self._clock()
        if self._reopen_after_s is not None and now_s >= self._reopen_after_s and self._all_silent():
            self._reopen_after_s = now_s + retry_s
            if self._sensors.open() is not None:
                return
        yield from self._sample(now_s)

    def close(self) -> Iterator[Reading]:
        """The last of what is read at both ends, and of the driver's own series."""
        if self._is_open:
            yield from self._sample(self._clock(), at_end=True)
        self._is_open = False
        self._sensors.close()

    def _sample(self, now_s: float, *, at_end: bool = False) -> Iterator[Reading]:
        for index, device in enumerate(self._sensors.devices()):
            yield from self._sample_device(index, device, now_s, at_end)
            if self._is_due(device, power_samples, now_s, at_end):
                yield from self._drain(index, device, now_s)
            if at_end:
                continue
            if self._is_due(device, process_metrics[0], now_s):
                yield from self._sample_processes(index, device, now_s)
            if device.unified_memory and self._is_due(device, unified_metrics[0], now_s):
                yield from self._sample_unified(device, now_s)

    def _is_due(self, device: GpuDevice, metric: str, now_s: float, at_end: bool = False) -> bool:
        """Half a tick early counts as due, since ticks are jittered."""
        return self._series_of(device, metric).is_due(now_s + self.interval_s / 2, at_end=at_end)

    def _sample_device(self, index: int, device: GpuDevice, now_s: float, at_end: bool) -> Iterator[Reading]:
        soon_s = now_s + self.interval_s / 2
        due = [
            name
            for name, series in self._readable_of(device)
            if (not at_end or metric_table[name].interval_s is None) and series.is_due(soon_s, at_end=at_end)
        ]
        if due:
            t_ns = time.monotonic_ns()
            answers = self._sensors.read(index, due)
            if used_metric in due:
                self._used[device.key] = answers[due.index(used_metric)]
            yield from self._write(device, due, answers, now_s, t_ns)

    def _drain(self, index: int, device: GpuDevice, now_s: float) -> Iterator[Reading]:
        drained, t_ns = self._sensors.drain(index), time.monotonic_ns()
        if isinstance(drained, Unreadable):
            yield from self._write(device, [power_samples], [drained], now_s, t_ns)
            return
        series = self._series_of(device, power_samples)
        series.take(None, now_s)
        self._empty_drains[device.key] += not drained
        if series.answering is None and self._empty_drains[device.key] >= patient_drains:
            yield from self._write(device, [power_samples], [no_samples], now_s, t_ns)
        for sample in drained:
            series.take(sample.watts, now_s)
            yield Reading(sample.t_ns, device.key, power_samples, sample.watts)

    def _sample_processes(self, index: int, device: GpuDevice, now_s: float) -> Iterator[Reading]:
        answers = own_and_foreign_bytes(
            self._sensors.processes(index), self._used.get(device.key), self._is_own
        )
        yield from self._write(device, process_metrics, answers, now_s, time.monotonic_ns())

    def _sample_unified(self, device: GpuDevice, now_s: float) -> Iterator[Reading]:
        memory, t_ns = self._sensors.system_memory(), time.monotonic_ns()
        answers: list[Answer] = [Unreadable("the host's memory is unknown", permanent=True)] * 2
        if memory is not None:
            total, available = memory
            answers = [float(total - available), float(total)]
        yield from self._write(device, unified_metrics, answers, now_s, t_ns)

    def _write(
        self,
        device: GpuDevice,
        metrics: Sequence[str],
        answers: Sequence[Answer],
        now_s: float,
        t_ns: int,
    ) -> Iterator[Reading]:
        for metric, answer in zip(metrics, answers, strict=True):
            series = self._series_of(device, metric)
            news = series.take(answer, now_s)
            if series.broken and self.warning is None:
                self.warning = f"{device.key}: {metric} stopped answering: {series.broken}"
            if news is not None:
                yield Reading(t_ns, device.key, metric, *news)

    def _readable_of(self, device: GpuDevice) -> list[tuple[str, _Series]]:
        if device.key not in self._readable:
            self._readable[device.key] = [(name, self._series_of(device, name)) for name in metric_table]
        return self._readable[device.key]

    def _series_of(self, device: GpuDevice, metric: str) -> _Series:
        key = (device.key, metric)
        if key not in self._series:
            told = metric_table.get(metric)
            if told is not None:
                self._series[key] = _Series(told.interval_s, on_change=told.on_change)
            else:
                interval_s = drain_s if metric == power_samples else slow_s
                self._series[key] = _Series(interval_s, on_change=metric == unified_metrics[1])
        return self._series[key]

    def _all_silent(self) -> bool:
        """Whether the driver answers nothing any more, of all that it once did."""
        repeated = [name for name, metric in metric_table.items() if metric.interval_s is not None]
        asked = [series for (_, metric), series in self._series.items() if metric in repeated]
        return any(s.broken for s in asked) and not any(s.answering for s in asked)
