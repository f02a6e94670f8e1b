"""When stages may work: overlapped, each as its queues let it, or in lockstep, behind a barrier.

In lockstep every target that still has data forwards one batch, then all drafters train what came of it, and
so on: forwards and steps never run at once. It is the yardstick for what overlapping gains. Knows nothing of
devices, queues or windows.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

from dflash.contract.events import Probe


class Schedule(Protocol):
    """Asked by stages before and after each batch. Waits are spans `barrier`; they raise the abort cause."""

    in_phases: bool  # a batch is done only when its device has finished with it

    def await_forward(self, probe: Probe) -> None:
        """A target with a batch in hand: wait until it may run."""

    def forwarded(self, probe: Probe) -> None:
        """A target: its batch has been forwarded; wait until it may be sent."""

    def leave(self) -> None:
        """A target has no more batches."""

    def await_step(self, probe: Probe) -> None:
        """A drafter: wait until batches may be taken."""

    def stepped(self) -> None:
        """A drafter: one batch has been trained."""

    def abort(self, error: BaseException) -> None:
        """Wake all waiters; they and all later ones raise the first error."""


class Overlapped:
    """Nobody waits for anybody but through the queues."""

    in_phases = False

    def await_forward(self, probe: Probe) -> None:
        """At once."""

    def forwarded(self, probe: Probe) -> None:
        """At once."""

    def leave(self) -> None:
        """Nothing to count."""

    def await_step(self, probe: Probe) -> None:
        """At once."""

    def stepped(self) -> None:
        """Nothing to count."""

    def abort(self, error: BaseException) -> None:
        """Nobody waits here."""


overlapped = Overlapped()


class Lockstep:
    """Rounds of two phases: one forward of each target, then the training of those batches.

    Batches are sent in the second phase only, so a round needs no room in the queues but what drafters make.
    """

    in_phases = True

    def __init__(self, targets: int) -> None:
        self._changed = threading.Condition()
        self._with_data = targets
        self._forwarded = 0  # in this round, while it forwards
        self._untrained = 0  # of this round, while it trains
        self._error: BaseException | None = None

    def await_forward(self, probe: Probe) -> None:
        """See Schedule."""
        self._wait(probe, lambda: not self._untrained)

    def forwarded(self, probe: Probe) -> None:
        """See Schedule."""
        with self._changed:
            self._forwarded += 1
            self._turn()
        self._wait(probe, lambda: self._untrained > 0)

    def leave(self) -> None:
        """See Schedule."""
        with self._changed:
            self._with_data -= 1
            self._turn()
            self._changed.notify_all()

    def await_step(self, probe: Probe) -> None:
        """See Schedule. After the last round drafters pass, to find their queues drained."""
        self._wait(probe, lambda: self._untrained > 0 or not self._with_data)

    def stepped(self) -> None:
        """See Schedule."""
        with self._changed:
            self._untrained -= 1
            self._changed.notify_all()

    def abort(self, error: BaseException) -> None:
        """See Schedule."""
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    def _turn(self) -> None:
        """Under the lock: open the second phase when every target with data has forwarded."""
        if self._forwarded and self._forwarded == self._with_data:
            self._untrained, self._forwarded = self._forwarded, 0
            self._changed.notify_all()

    def _wait(self, probe: Probe, ready: Callable[[], bool]) -> None:
        with self._changed:
            if self._error is None and not ready():
                start_ns = time.monotonic_ns()
                self._changed.wait_for(lambda: self._error is not None or ready())
                probe.emit_span("barrier", start_ns, time.monotonic_ns())
            if self._error is not None:
                raise self._error


def open_schedule(name: str, targets: int) -> Schedule:
    """The schedule called `name` (a choice of pipeline.schedule)."""
    return Lockstep(targets) if name == "lockstep" else overlapped
