"""Which drafter a batch goes to. Knows tokens, not tensors, and not the queues' depths.

Load is what has been dispatched to a drafter and not yet finished by it, in tokens, counted under a lock:
lengths vary, so batches are no measure, and the size of a queue says nothing of the work in hand.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Protocol


class Dispatch(Protocol):
    """Chooses a home for each batch."""

    def reserve(self, tokens: int, target: int = 0) -> int:
        """The drafter that the next batch of `target` goes to, charged with `tokens`."""

    def release(self, drafter: int, tokens: int) -> None:
        """A batch charged to `drafter` has been trained on."""


class Ledger:
    """Tokens under way to each drafter; subclasses choose from them, under the lock."""

    def __init__(self, drafters: int) -> None:
        self._lock = threading.Lock()
        self._reserved_tokens = [0] * drafters
        self._last = drafters - 1

    def reserve(self, tokens: int, target: int = 0) -> int:
        """See Dispatch."""
        with self._lock:
            chosen = self._choose(self._reserved_tokens, target)
            self._reserved_tokens[chosen] += tokens
            self._last = chosen
            return chosen

    def release(self, drafter: int, tokens: int) -> None:
        """See Dispatch."""
        with self._lock:
            self._reserved_tokens[drafter] -= tokens

    def reserved_tokens(self) -> tuple[int, ...]:
        """Tokens under way, by drafter."""
        with self._lock:
            return tuple(self._reserved_tokens)

    def _choose(self, reserved_tokens: Sequence[int], target: int) -> int:
        raise NotImplementedError


class RoundRobin(Ledger):
    """In turn, whatever the lengths."""

    def _choose(self, reserved_tokens: Sequence[int], target: int) -> int:  # noqa: ARG002 - all alike
        return (self._last + 1) % len(reserved_tokens)


class LeastDepth(Ledger):
    """The one with the fewest tokens under way; among equals, the next in turn."""

    def _choose(self, reserved_tokens: Sequence[int], target: int) -> int:  # noqa: ARG002 - all alike
        count = len(reserved_tokens)
        in_turn = [(self._last + 1 + step) % count for step in range(count)]
        return min(in_turn, key=lambda drafter: reserved_tokens[drafter])


class Local(Ledger):
    """The one of the target's number: its own device where the split is colocated, or even and shared."""

    def _choose(self, reserved_tokens: Sequence[int], target: int) -> int:
        return target % len(reserved_tokens)


dispatches = {"round_robin": RoundRobin, "least_depth": LeastDepth, "local": Local}
