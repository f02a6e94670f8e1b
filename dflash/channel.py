"""Bounded FIFO between two stages, and the only place where a stage waits for another.

So it is where waiting is measured: every `put` and `get` is a span, also when it did not wait, and every
change of the depth is a gauge, both taken under the lock. Order is preserved. The last writer's `close`
lets readers drain; `abort` wakes everybody with the first cause. Knows nothing of tensors or devices.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Generic, TypeVar

from dflash.contract.events import Probe

T = TypeVar("T")


class ChannelClosed(Exception):
    """All writers are done and everything written has been read."""


class Channel(Generic[T]):
    """At most `capacity` items of one type on their way from writers to readers."""

    def __init__(self, name: str, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"channel {name}: a capacity of {capacity} can carry nothing")
        self.name, self.capacity = name, capacity
        self._items: deque[T] = deque()
        self._writers = 0
        self._closed = False
        self._error: BaseException | None = None
        self._lock = threading.Lock()
        self._readable = threading.Condition(self._lock)
        self._writable = threading.Condition(self._lock)

    def add_writer(self) -> None:
        """Expect one more `close`. Call it before the writer's thread starts."""
        with self._lock:
            self._check_open()
            self._writers += 1

    def put(self, item: T, probe: Probe) -> None:
        """Append `item`, waiting for room. Raises the abort cause, or ChannelClosed after the last close."""
        start_ns = time.monotonic_ns()
        try:
            with self._writable:
                while len(self._items) >= self.capacity and not self._ended():
                    self._writable.wait()
                self._check_open()
                self._items.append(item)
                self._emit_depth(probe)
                self._readable.notify()
        finally:
            probe.emit_span("put", start_ns, time.monotonic_ns(), channel=self.name)

    def get(self, probe: Probe) -> T:
        """The oldest item, waiting for one. Raises the abort cause, or ChannelClosed when drained."""
        start_ns = time.monotonic_ns()
        try:
            with self._readable:
                while not self._items and not self._ended():
                    self._readable.wait()
                if self._error is not None or not self._items:
                    self._check_open()
                item = self._items.popleft()
                self._emit_depth(probe)
                self._writable.notify()
                return item
        finally:
            probe.emit_span("get", start_ns, time.monotonic_ns(), channel=self.name)

    def close(self) -> None:
        """One writer is done; the last one lets readers drain. Never raises the abort cause."""
        with self._lock:
            if self._writers == 0:
                raise RuntimeError(f"channel {self.name}: closed more often than it has writers")
            self._writers -= 1
            if self._writers == 0:
                self._closed = True
                self._wake_all()

    def abort(self, error: BaseException) -> None:
        """Wake everybody; from now on `put` and `get` raise the first error given here."""
        with self._lock:
            if self._error is None:
                self._error = error
            self._wake_all()

    def depth(self) -> int:
        """Items waiting now. After an abort: the items nobody took."""
        with self._lock:
            return len(self._items)

    def _ended(self) -> bool:
        return self._closed or self._error is not None

    def _check_open(self) -> None:
        if self._error is not None:
            raise self._error
        if self._closed:
            raise ChannelClosed(self.name)

    def _wake_all(self) -> None:
        self._readable.notify_all()
        self._writable.notify_all()

    def _emit_depth(self, probe: Probe) -> None:
        """Under the lock, so that gauges appear in the order in which the depth changed."""
        probe.gauge("depth", len(self._items), channel=self.name)
