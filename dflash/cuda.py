"""GPUs as Devices (`dflash/devices.py`): streams for threads, events as Moments, event pairs as Timings.

Times of CUDA work are event pairs read after the fact. An anchor event per device, renewed about every
10 s, ties them to CLOCK_MONOTONIC: `elapsed_time` is float32 milliseconds, so far from an anchor it
loses microseconds. Knows nothing of stages or copies.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from dflash.contract.events import Probe

anchor_age_s = 10.0
anchor_doubt_ns = 200_000  # an anchor less certain than this does not replace an older one


def open_stream(device: torch.device) -> torch.cuda.Stream:
    """A non-default stream of `device`."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _new_event(*, timed: bool = False, blocking: bool = False) -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=timed, blocking=blocking)  # type: ignore[no-untyped-call]


def _passed(event: torch.cuda.Event) -> bool:
    return bool(event.query())  # type: ignore[no-untyped-call]


class CudaMoment:
    """A CUDA event. `wait` sleeps in the driver (a blocking event) with the GIL released."""

    __slots__ = ("event",)

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self.event = _new_event(blocking=True)
        self.event.record(stream)

    def done(self) -> bool:
        """Whether the device has passed the event."""
        return _passed(self.event)

    def wait(self) -> None:
        """Sleep until the device has passed the event."""
        self.event.synchronize()

    def order_stream(self) -> None:
        """The current stream of the thread's current device waits; the thread does not."""
        torch.cuda.current_stream().wait_event(self.event)


class DeviceClock:
    """Places CUDA events of one device on CLOCK_MONOTONIC."""

    def __init__(self, device: torch.device, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._stream, self._clock_ns = open_stream(device), clock_ns
        self._lock = threading.Lock()
        self._anchor, self._anchor_ns, _ = self._measure()
        self._tried_ns = self._anchor_ns

    def span_ns(self, start: torch.cuda.Event, end: torch.cuda.Event) -> tuple[int, int]:
        """Host times of two events that this device has passed."""
        with self._lock:
            if self._clock_ns() - self._tried_ns > anchor_age_s * 1e9:
                self._renew()
            start_ns = self._anchor_ns + round(self._anchor.elapsed_time(start) * 1e6)
        return start_ns, start_ns + round(start.elapsed_time(end) * 1e6)

    def _renew(self) -> None:
        anchor, anchor_ns, doubt_ns = self._measure()
        self._tried_ns = self._clock_ns()
        if doubt_ns <= anchor_doubt_ns:
            self._anchor, self._anchor_ns = anchor, anchor_ns

    def _measure(self) -> tuple[torch.cuda.Event, int, int]:
        """The surest of three anchors: event, host time, width of the interval it surely lies in."""
        attempts = []
        for _ in range(3):
            event = _new_event(timed=True)
            before_ns = self._clock_ns()
            event.record(self._stream)
            event.synchronize()
            after_ns = self._clock_ns()
            attempts.append((after_ns - before_ns, (before_ns + after_ns) // 2, event))
        doubt_ns, anchor_ns, event = min(attempts, key=lambda attempt: attempt[0])
        return event, anchor_ns, doubt_ns


class CudaTiming:
    """An event pair on the stream that was current at `start_timing`."""

    __slots__ = ("_clock", "_end", "_start", "_stream")

    def __init__(self, clock: DeviceClock, stream: torch.cuda.Stream) -> None:
        self._clock, self._stream = clock, stream
        self._start = _new_event(timed=True)
        self._end = _new_event(timed=True, blocking=True)
        self._start.record(stream)

    def stop(self) -> None:
        """The end is whatever has been enqueued on the stream by now."""
        self._end.record(self._stream)

    def done(self) -> bool:
        """Whether the device has passed both ends."""
        return _passed(self._end)

    def ends_ns(self) -> tuple[int, int]:
        """Start and end on CLOCK_MONOTONIC."""
        self._end.synchronize()
        return self._clock.span_ns(self._start, self._end)


class CudaDevice:
    """One GPU. Nothing touches it before one is made."""

    def __init__(self, index: int) -> None:
        self.index, self.name = index, f"cuda:{index}"
        self.torch_device = torch.device("cuda", index)
        self.emulated = False
        self._clock = DeviceClock(self.torch_device)

    def bind_thread(self) -> None:
        """A new thread starts on GPU 0 and its default stream: give it this GPU and a stream of its own."""
        torch.cuda.set_stream(open_stream(self.torch_device))  # makes its GPU the current one, too

    def record(self) -> CudaMoment:
        """An event on the calling thread's current stream of this GPU."""
        return CudaMoment(torch.cuda.current_stream(self.torch_device))

    def start_timing(self) -> CudaTiming:
        """An event pair begins on the calling thread's current stream of this GPU."""
        return CudaTiming(self._clock, torch.cuda.current_stream(self.torch_device))

    def active(self) -> AbstractContextManager[None]:
        """Inside, this GPU is the calling thread's current one."""
        return torch.cuda.device(self.index)

    def computing(self, probe: Probe, **fields: object) -> AbstractContextManager[None]:  # noqa: ARG002
        """No turns to take: the GPU itself divides its time between the streams of roles that share it."""
        return nullcontext()

    def memory_figures(self) -> dict[str, float]:
        """Read from the allocator's own counters; no device call."""
        stats = torch.cuda.memory_stats(self.index)
        return {
            "allocated_bytes": float(stats.get("allocated_bytes.all.current", 0)),
            "reserved_bytes": float(stats.get("reserved_bytes.all.current", 0)),
            "alloc_retries": float(stats.get("num_alloc_retries", 0)),
            "peak_allocated_bytes": float(stats.get("allocated_bytes.all.peak", 0)),
            "peak_reserved_bytes": float(stats.get("reserved_bytes.all.peak", 0)),
        }

    def forget_peaks(self) -> None:
        """See Device."""
        torch.cuda.reset_peak_memory_stats(self.index)

    def facts(self) -> dict[str, Any]:
        """What the driver says of the GPU; the uuid is spelled as NVML spells it."""
        properties = torch.cuda.get_device_properties(self.index)
        uuid = getattr(properties, "uuid", None)  # absent in older torch
        return {
            "model": properties.name,
            "uuid": None if uuid is None else f"GPU-{str(uuid).removeprefix('GPU-')}",
            "pci": _pci_address(properties),
            "memory_bytes": properties.total_memory,
        }


def describe_torch() -> dict[str, Any]:
    """Torch's version, the CUDA version it was built for (None: none), and the names of the GPUs it sees."""
    gpus = range(torch.cuda.device_count() if torch.cuda.is_available() else 0)
    return {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "gpus": [torch.cuda.get_device_properties(index).name for index in gpus],
    }


def _pci_address(properties: Any) -> str | None:
    numbers = [getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    if any(number is None for number in numbers):
        return None
    domain, bus, device = numbers
    return f"{domain:08x}:{bus:02x}:{device:02x}.0"
