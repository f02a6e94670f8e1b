"""Which window may train now, and how far it is: the barrier between windows on the drafters' side.

A drafter that holds a batch of a later window waits here until every batch of the earlier ones was
back-propagated and the optimizer has stepped. Knows nothing of gradients.
"""

from __future__ import annotations

import threading
import time

from dflash.batch import WindowInfo
from dflash.contract.events import Probe


class WindowProgress:
    """Counts back-propagated batches of the current window; thread-safe."""

    def __init__(self, first_step: int = 0) -> None:
        self._condition = threading.Condition()
        self._step, self._trained = first_step, 0
        self._error: BaseException | None = None

    @property
    def step(self) -> int:
        """The step in progress."""
        return self._step

    def wait_for(self, window: WindowInfo, probe: Probe) -> None:
        """Block until `window` is the current one; a wait is a span `window_wait`. Raises the abort cause."""
        with self._condition:
            if self._error is None and self._step == window.step:
                return
            start_ns = time.monotonic_ns()
            self._condition.wait_for(lambda: self._error is not None or self._step == window.step)
            probe.emit_span("window_wait", start_ns, time.monotonic_ns(), window=window.step)
            if self._error is not None:
                raise self._error

    def batch_trained(self, window: WindowInfo) -> bool:
        """Count one batch; True for the caller whose batch was the window's last."""
        with self._condition:
            self._trained += 1
            return self._trained == window.batches

    def advance(self) -> None:
        """The step was made: the next window may train."""
        with self._condition:
            self._step, self._trained = self._step + 1, 0
            self._condition.notify_all()

    def abort(self, error: BaseException) -> None:
        """Wake everybody; each raises `error`. The first error stays."""
        with self._condition:
            self._error = self._error or error
            self._condition.notify_all()
