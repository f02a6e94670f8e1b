"""The running parts of a pipeline and how it ends: first error wins, everybody wakes, nothing hangs.

Holds whatever can block a stage and aborts all of it together. Knows nothing of what stages do.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Protocol

from dflash.contract.errors import StageError
from dflash.out_of_memory import Depths


class Abortable(Protocol):
    """Something stages wait in."""

    def abort(self, error: BaseException) -> None:
        """Wake all waiters; they and all later callers raise `error`."""


class PipelineStopped(Exception):
    """Raised in stages when the run ends before the data does. Carries the reason."""


class PipelineState:
    """First cause and stop request of one pipeline."""

    def __init__(self, parts: Iterable[Abortable]) -> None:
        self._parts = tuple(parts)
        self._lock = threading.Lock()
        self._first: BaseException | None = None
        self.stop_reason: str | None = None  # set: end after the window in progress
        self.depths: Callable[[], Depths] = list  # of all queues, for error messages

    @property
    def first_error(self) -> BaseException | None:
        """The first failure, None for a run that ended well or was asked to stop."""
        return None if isinstance(self._first, PipelineStopped) else self._first

    @property
    def aborted(self) -> bool:
        """Whether everybody has been told to end at once, for whatever reason."""
        return self._first is not None

    def request_stop(self, reason: str) -> None:
        """End after the window in progress. The first reason stays. Safe in a signal handler."""
        self.stop_reason = self.stop_reason or reason

    def stop_now(self, reason: str) -> None:
        """End at once; what is in the queues is dropped."""
        self.request_stop(reason)
        self.abort(PipelineStopped(reason))

    def abort(self, error: BaseException) -> None:
        """Remember the first error and wake everybody with it."""
        with self._lock:
            self._first = self._first or error
            first = self._first
        for part in self._parts:
            part.abort(first)

    def fail(
        self, error: Exception, *, stage: str, device: str, batch: int | None, found: str | None = None
    ) -> None:
        """A stage failed. When another one failed first this is its echo, and is dropped."""
        with self._lock:
            echo = self._first is not None
        if not echo:
            self.abort(StageError(error, stage=stage, device=device, batch=batch, found=found))
