"""Links between logical devices: bytes are really copied, then the copy is stretched to a declared speed.

A Link does one copy at a time, as a copy engine does. `copy` runs it in the calling thread; `submit`
hands it to the link's own worker thread and returns the moment of its end. Pacing sleeps without the
GIL and without spinning, and an abort cuts it short. Knows nothing of transports or batches.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import NamedTuple

from dflash.devices import Moment


class CopyMoment:
    """The end of a copy that a link's worker makes."""

    def __init__(self) -> None:
        self._reached = threading.Event()
        self._error: BaseException | None = None

    def done(self) -> bool:
        """Whether the copy has ended, well or not."""
        return self._reached.is_set()

    def wait(self) -> None:
        """Block until the copy has ended. Raises what made it fail."""
        self._reached.wait()
        if self._error is not None:
            raise self._error

    def order_stream(self) -> None:
        """Logical devices have no streams: wait."""
        self.wait()

    def finish(self, error: BaseException | None = None) -> None:
        """The copy has ended; `error` if it failed."""
        self._error = error
        self._reached.set()


class _Job(NamedTuple):
    action: Callable[[], object]
    copy_bytes: int
    after: Moment | None
    ended: Callable[[int, int], None]
    moment: CopyMoment


class Link:
    """One direction between two places, `gigabytes_per_s` × 10^9 bytes a second after `latency_us` a copy."""

    def __init__(
        self,
        name: str,
        *,
        gigabytes_per_s: float,
        latency_us: float,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        sleep: Callable[[float], object] | None = None,
    ) -> None:
        self.name, self.gigabytes_per_s, self.latency_us = name, gigabytes_per_s, latency_us
        self._stopped = threading.Event()
        self._clock_ns = clock_ns
        self._sleep = sleep or self._stopped.wait
        self._busy = threading.Lock()  # one copy at a time
        self._state = threading.Lock()  # worker, closed, error
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._worker: threading.Thread | None = None
        self._closed = False
        self._error: BaseException | None = None

    def duration_ns(self, copy_bytes: int) -> int:
        """What a copy of that size takes."""
        return round(self.latency_us * 1e3 + copy_bytes / self.gigabytes_per_s)

    def copy(self, action: Callable[[], object], copy_bytes: int) -> tuple[int, int]:
        """Run `action` in this thread and stretch it. Returns start and end; raises the abort cause."""
        with self._busy:
            start_ns = self._clock_ns()
            action()
            due_ns = start_ns + self.duration_ns(copy_bytes)
            while (left_ns := due_ns - self._clock_ns()) > 0 and self._error is None:
                self._sleep(left_ns / 1e9)
            if self._error is not None:
                raise self._error
            return start_ns, self._clock_ns()

    def submit(
        self,
        action: Callable[[], object],
        copy_bytes: int,
        *,
        ended: Callable[[int, int], None],
        after: Moment | None = None,
    ) -> CopyMoment:
        """Let the worker run `action` behind earlier ones and `after`. Raises the abort cause.

        The worker calls `ended(start_ns, end_ns)` when the copy is done, before its moment is reached.
        """
        moment = CopyMoment()
        with self._state:
            if self._error is not None:
                raise self._error
            if self._closed:
                raise RuntimeError(f"link {self.name} is closed")
            if self._worker is None:
                self._worker = threading.Thread(target=self._work, name=f"link:{self.name}", daemon=True)
                self._worker.start()
            self._jobs.put(_Job(action, copy_bytes, after, ended, moment))
        return moment

    def close(self) -> None:
        """Finish what was submitted and join the worker."""
        with self._state:
            if not self._closed:
                self._closed = True
                self._jobs.put(None)
            worker = self._worker
        if worker is not None:
            worker.join()

    def abort(self, error: BaseException) -> None:
        """Cut pacing short and fail every copy that has not ended, with the first error given here."""
        with self._state:
            if self._error is None:
                self._error = error
            if not self._closed:
                self._closed = True
                self._jobs.put(None)
        self._stopped.set()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job.moment.finish(self._run(job))
            del job  # an idle link keeps no tensors alive

    def _run(self, job: _Job) -> BaseException | None:
        """Do one job; its failure, which belongs to whoever waits for the moment."""
        try:
            if self._error is not None:
                return self._error
            if job.after is not None:
                job.after.wait()
            job.ended(*self.copy(job.action, job.copy_bytes))
        except BaseException as error:  # noqa: BLE001 - a thread boundary: raised again by CopyMoment.wait
            return error
        return None
