"""How long the parts of something took, one after the other. Knows nothing of what they are."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Stopwatch:
    """Seconds by the names of parts, in their order; a name that comes again adds up."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.seconds: dict[str, float] = {}

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """The time inside, also of a part that fails."""
        start_s = self._clock()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + self._clock() - start_s

    def describe(self) -> str:
        """`57.7 s: weights 40.1, links 12.5, data 5.1`: the longest first, those under 0.1 s left out."""
        longest = sorted(self.seconds.items(), key=lambda part: -part[1])
        parts = ", ".join(f"{name} {seconds:.1f}" for name, seconds in longest if seconds >= 0.1)
        return f"{sum(self.seconds.values()):.1f} s" + (f": {parts}" if parts else "")
