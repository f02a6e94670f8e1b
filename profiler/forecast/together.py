"""Work that goes on at once on the cores of one CPU, or on one device, each at a part of its pace.

Knows nothing of what works.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import simpy


class Together:
    """Stages at work: the more there are, the slower each, by a factor that depends on which they are."""

    def __init__(self, env: simpy.Environment, slowdown: Callable[[Sequence[str]], float]) -> None:
        self._env, self._slowdown = env, slowdown
        self._left: dict[simpy.Event, float] = {}
        self._stages: dict[simpy.Event, str] = {}
        self._since = 0.0
        self._turn = 0

    def work(self, stage: str, seconds: float) -> simpy.Event:
        """The event that a stage has done so much work."""
        self._advance()
        done = self._env.event()
        self._left[done], self._stages[done] = seconds, stage
        self._schedule()
        return done

    def _advance(self) -> None:
        if self._left:
            spent = (self._env.now - self._since) / self._slowdown(list(self._stages.values()))
            for event in self._left:
                self._left[event] -= spent
        self._since = self._env.now

    def _schedule(self) -> None:
        self._turn += 1
        if self._left:
            delay = max(min(self._left.values()), 0.0) * self._slowdown(list(self._stages.values()))
            self._env.timeout(delay, self._turn).callbacks.append(self._tick)

    def _tick(self, event: simpy.Event) -> None:
        if event.value != self._turn:
            return  # something began meanwhile, and set another time
        self._advance()
        ended = [done for done, left in self._left.items() if left <= 1e-12]
        for done in ended:
            del self._left[done], self._stages[done]
            done.succeed()
        self._schedule()
