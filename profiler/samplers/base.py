"""What a sampler is, and the thread that runs one at its pace into a log.

Every sampler passes tests/contract/test_sampler.py. Knows nothing of what is sampled.
"""

from __future__ import annotations

import itertools
import math
import random
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from dflash.contract.arrowlog import ArrowLog
from dflash.contract.errors import RunError

everything = "*"  # the key of a reading that concerns a whole source
golden_step = (math.sqrt(5.0) - 1.0) / 2.0
retry_s = 30.0  # between attempts at something that failed
stop_limit_s = 10.0  # a sampler that takes longer to stop is left behind


class Reading(NamedTuple):
    """One value of one metric of one thing. Without a value there is a reason, and the other way round."""

    t_ns: int  # CLOCK_MONOTONIC
    key: str  # whose: a GPU uuid, a process, a thread
    metric: str  # with its unit
    value: float | None
    reason: str | None = None


class Sampler(Protocol):
    """A periodic reading from outside. All calls come from one thread."""

    name: str
    interval_s: float
    metrics: tuple[str, ...]  # all it may ever emit
    jitter_share: float = 0.2  # of the interval, in which a tick may fall
    rest_s: float = 0.0  # ticks of this time are left out after a sample; read after each
    warning: str | None = None  # the one thing worth telling, once
    helper_cpu_s: float = 0.0  # CPU time of processes that it started

    def open(self) -> str | None:
        """Get ready; returns why there is nothing to be had here, or None."""
        ...

    def sample(self) -> Iterable[Reading]:
        """What can be read now. Blocks for milliseconds at most."""
        ...

    def close(self) -> Iterable[Reading]:
        """Let go of everything; returns readings that were still due."""
        ...


@dataclass(frozen=True, slots=True)
class SamplerReport:
    """How it went. `status` is ok, partial (some readings are missing) or n/a."""

    status: str
    reason: str | None
    cpu_s: float

    def entry(self) -> dict[str, object]:
        """Its place in run.json."""
        return {"status": self.status, "reason": self.reason, "cpu_s": round(self.cpu_s, 3)}


def even_jitter() -> Callable[[], float]:
    """Numbers from 0 to 1 from a random start in steps of the golden ratio.

    They fall everywhere equally often after far fewer draws than random ones, and keep step with no period.
    """
    steps = itertools.count()
    start = random.random()
    return lambda: (start + next(steps) * golden_step) % 1.0


class Schedule:
    """Due times on an absolute grid, jittered so that they do not beat against a periodic load.

    Ticks that were missed are skipped, never caught up with.
    """

    def __init__(
        self,
        interval_s: float,
        start_s: float,
        jitter: Callable[[], float] | None = None,
        jitter_share: float = 0.2,
    ) -> None:
        self._interval_s, self._start_s = interval_s, start_s
        self._jitter, self._jitter_share = jitter or even_jitter(), jitter_share
        self._tick = -1

    def delay_s(self, now_s: float) -> float:
        """Time from `now_s` to the next tick, which is hereby taken."""
        passed = math.floor((now_s - self._start_s) / self._interval_s)
        self._tick = max(self._tick + 1, passed)
        shift = self._jitter_share * (self._jitter() - 0.5)
        return max(0.0, self._start_s + (self._tick + shift) * self._interval_s - now_s)

    def skip(self, time_s: float) -> None:
        """Leave out the ticks of the next `time_s`."""
        self._tick += math.ceil(time_s / self._interval_s)


class SamplerThread:
    """Runs one sampler until stopped. No failure of the sampler leaves this class but as a reason."""

    def __init__(self, sampler: Sampler, log: ArrowLog) -> None:
        self._sampler, self._log = sampler, log
        self._running = (
            threading.Lock()
        )  # held until stopped: waiting for it costs a third less than an Event
        self._running.acquire()
        self._problem: str | None = None  # the first failure
        self._values = 0
        self._cpu_s = 0.0
        self._thread = threading.Thread(target=self._run, name=f"sampler:{sampler.name}", daemon=True)

    def start(self) -> None:
        """Begin at once."""
        self._thread.start()

    def stop(self) -> SamplerReport:
        """Take the last readings, close sampler and log, and say how it went."""
        if self._running.locked():
            self._running.release()
        self._thread.join(stop_limit_s)
        if self._thread.is_alive():
            self._problem = f"did not stop within {stop_limit_s:g} s"
        try:
            self._log.close()
        except RunError as error:
            self._problem = error.what
        reason = self._problem or self._sampler.warning
        if self._values == 0:
            return SamplerReport("n/a", reason or "ended before the first reading", self._cpu_s)
        return SamplerReport("partial" if reason else "ok", reason, self._cpu_s)

    def _run(self) -> None:
        started_s = time.thread_time()
        if self._open():
            schedule = Schedule(
                self._sampler.interval_s, time.monotonic(), jitter_share=self._sampler.jitter_share
            )
            while not self._running.acquire(timeout=schedule.delay_s(time.monotonic())):
                pause_s = self._sampler.rest_s if self._take(self._sampler.sample) else retry_s
                if pause_s > 0:
                    schedule.skip(pause_s)
        self._take(self._sampler.close)
        self._cpu_s = time.thread_time() - started_s + self._sampler.helper_cpu_s
        self._write(Reading(time.monotonic_ns(), everything, "sampler_cpu_s", self._cpu_s))

    def _open(self) -> bool:
        try:
            reason = self._sampler.open()
        except Exception as error:  # noqa: BLE001 - a thread boundary: a broken sensor must not end a recording
            reason = f"{type(error).__name__}: {error}"
        if reason is not None:
            self._fail(reason)
        return reason is None

    def _take(self, read: Callable[[], Iterable[Reading]]) -> bool:
        try:
            for reading in read():
                self._write(reading)
                self._values += reading.value is not None
        except Exception as error:  # noqa: BLE001 - a thread boundary: a broken sensor must not end a recording
            self._fail(f"{type(error).__name__}: {error}")
            return False
        return True

    def _fail(self, reason: str) -> None:
        """Write the reason for every metric, the first time; later ones add nothing to it."""
        if self._problem is None:
            self._problem = reason
            for metric in self._sampler.metrics:
                self._write(Reading(time.monotonic_ns(), everything, metric, None, reason))

    def _write(self, reading: Reading) -> None:
        t_ns, key, metric, value, reason = reading
        if value is not None and not math.isfinite(value):
            value, reason = None, "not a finite number"
        self._log.append((t_ns, self._sampler.name, key, metric, value, reason))
