"""The GPUs between trials, asked from outside: is each still there, and is its memory free again.

Asks NVML through the profiler's sensors; without GPUs it has nothing to say. Knows nothing of trials.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from autotune.failure_words import kind_in_words
from autotune.machine import visible_gpus
from autotune.telemetry import FailureKind
from dflash.contract.errors import DFlashError
from profiler.samplers.sensors import GpuSensors, Unreadable

used_metric = "mem_used_bytes"
slack_share = 0.02  # of a GPU's memory: more than that above the lowest ever seen is not free again
notice_after_s = 5.0  # a driver takes a moment to hand back what a killed process held
give_up_after_s = 180.0
look_every_s = 0.25


@dataclass(slots=True)
class GpuWatch:
    """What the GPUs that CUDA shows hold when no trial runs.

    `sensors` are open, and closed by whoever opened them. `notice` is told what is waited for. `clock` and
    `sleep` are in seconds.
    """

    sensors: GpuSensors
    notice: Callable[[str], None] = lambda message: None
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    _lowest: dict[int, float] = field(default_factory=dict)

    def settle(self) -> None:
        """Return when every GPU's memory is within 2 % of the least that was seen of it.

        Raises DFlashError naming GPU, bytes and processes when that does not come about.
        """
        began_s, said = self.clock(), False
        while held := self._held_bytes():
            waited_s = self.clock() - began_s
            if waited_s >= give_up_after_s:
                raise DFlashError(
                    "GPU memory that was free before is taken, so no measurement would be fair",
                    found=self._describe(held),
                    remedy="end what uses the GPUs; the same line then goes on",
                )
            if not said and waited_s >= notice_after_s:
                said = True
                self.notice(f"waiting for GPU memory to be free again: {self._describe(held)}")
            self.sleep(look_every_s)

    def find_lost(self) -> str | None:
        """Which GPU is gone, in words; None while all answer."""
        devices = self.sensors.devices()
        for index in self._visible():
            (answer,) = self.sensors.read(index, [used_metric])
            if isinstance(answer, Unreadable) and kind_in_words(answer.reason) is FailureKind.lost_gpu:
                return f"GPU {devices[index].index} ({devices[index].key}): {answer.reason}"
        return None

    def _visible(self) -> list[int]:
        devices = self.sensors.devices()
        names = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
        shown, _ = visible_gpus(devices, *(self.environment.get(name) for name in names))
        keys = {gpu.uuid for gpu in shown}
        return [index for index, device in enumerate(devices) if device.key in keys]

    def _held_bytes(self) -> dict[int, float]:
        """{number of the sensors' device: bytes above the least seen} of those that hold too much."""
        held = {}
        for index in self._visible():
            (used,) = self.sensors.read(index, [used_metric])
            if used is None or isinstance(used, Unreadable):
                continue  # nobody can tell: not waited for
            self._lowest[index] = min(used, self._lowest.get(index, used))
            excess = used - self._lowest[index]
            if excess > slack_share * (self.sensors.devices()[index].memory_bytes or used):
                held[index] = excess
        return held

    def _describe(self, held: Mapping[int, float]) -> str:
        return "; ".join(self._describe_one(index, excess) for index, excess in held.items())

    def _describe_one(self, index: int, excess: float) -> str:
        device = self.sensors.devices()[index]
        told = self.sensors.processes(index)
        processes = [] if isinstance(told, Unreadable) else [_describe_process(each.pid) for each in told]
        by = f" held by {', '.join(processes)}" if processes else ", and the driver names no process"
        return f"GPU {device.index} holds {excess / 1e9:.1f} GB more than before{by}"


def _describe_process(pid: int) -> str:
    try:
        name = Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return f"process {pid}"
    return f"process {pid} ({name})"


def watch_gpus(notice: Callable[[str], None] = lambda message: None) -> GpuWatch | None:
    """A watch over this machine's GPUs through NVML; None where there are none."""
    from profiler.samplers.nvml import NvmlSensors

    sensors = NvmlSensors()
    return GpuWatch(sensors, notice) if sensors.open() is None else None
