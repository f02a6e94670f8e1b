"""Tells what windows came to, in their order, as soon as a device has made their steps.

Stages only enqueue a window's step and go on; a thread of its own waits for the device. Where a step is made
when the call returns, as on logical devices, it is told at once and there is no thread. Knows nothing of what
is done with the figures.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from dflash.batch import WindowInfo
from dflash.contract.events import Probe
from dflash.window_end import WindowEnd
from dflash.window_figures import WindowFigures

Tell = Callable[[WindowInfo, WindowFigures], None]
close_grace_s = 120.0  # for steps that are still being made when the stages have ended


class WindowBooks:
    """Fed with ends of windows in order, by any thread; thread-safe."""

    def __init__(self, tell: Tell, fail: Callable[[Exception], None]) -> None:
        """`fail` is told, once, what made the thread give up."""
        self._tell, self._fail = tell, fail
        self._changed = threading.Condition()
        self._open: deque[tuple[WindowEnd, Probe]] = deque()  # not yet told
        self._error: BaseException | None = None  # why nothing is told any more
        self._aborted: BaseException | None = None
        self._closing = False
        self._thread: threading.Thread | None = None

    def add(self, end: WindowEnd, probe: Probe) -> None:
        """The step of a window was enqueued. Raises what went wrong with it, where that is known already."""
        with self._changed:
            if self._error is not None:
                return
            if self._open or not end.moment.done():
                self._open.append((end, probe))
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="window-books", daemon=True)
                    self._thread.start()
                self._changed.notify_all()
                return
        self._tell(end.window, end.figures(probe))

    def settle(self) -> None:
        """Block until every window so far has been told. Raises what went wrong."""
        with self._changed:
            self._changed.wait_for(lambda: not self._open or self._error or self._aborted)
            error = self._error or (self._aborted if self._open else None)
            if error is not None:
                raise error

    def abort(self, error: BaseException) -> None:
        """Who waits in `settle` raises `error`. Steps that are enqueued are made, and told, all the same."""
        with self._changed:
            self._aborted = self._aborted or error
            self._changed.notify_all()

    def close(self) -> bool:
        """Tell what is left and end the thread; whether it has ended within two minutes."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is None:
            return True
        self._thread.join(close_grace_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while (following := self._next()) is not None:
                end, probe = following
                self._tell(end.window, end.figures(probe))
                with self._changed:
                    self._open.popleft()
                    self._changed.notify_all()
        except Exception as error:  # noqa: BLE001 - the thread boundary: every failure ends the pipeline
            with self._changed:
                self._error = error
                self._changed.notify_all()
            self._fail(error)

    def _next(self) -> tuple[WindowEnd, Probe] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._open or self._closing)
            return self._open[0] if self._open else None
