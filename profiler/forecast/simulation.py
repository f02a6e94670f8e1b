"""A pipeline played batch by batch, with the semantics of the real channels: for one what-if at a time.

Bounded queues, turns of windows, the barrier between windows, send buffers, links that make one copy at a
time, dispatch by tokens under way, lockstep, and devices and CPU cores that roles share. Knows
nothing of runs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle, islice
from typing import Any, Final

import numpy as np
import simpy

from profiler.forecast.model import PipelineModel, Windows, keeps_driver
from profiler.forecast.setting import Setting
from profiler.forecast.together import Together

Process = Generator[Any, Any, None]
usual_windows: Final = 40
most_batches: Final = 1500  # played at most; fewer windows then
enqueueing_s: Final = 1e-5  # a copy that begins at the same moment gets in between
send_buffers: Final = 2  # of a target: copies under way
warmup_share: Final = 0.15  # of the windows, cut
Sample = tuple[str, int, int, float, float]  # stage, index, window, tokens, seconds of work


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What was played, without its first windows."""

    tokens: tuple[float, ...]  # of each window
    seconds: tuple[float, ...]
    shares: dict[str, dict[str, float]]  # by stage: shares of its threads' time at work, copying, and waiting
    samples: tuple[Sample, ...] = ()  # of all windows
    steps_s: tuple[float, ...] = ()

    @property
    def tokens_per_s(self) -> float:
        return sum(self.tokens) / sum(self.seconds)


@dataclass(slots=True)
class _Item:
    number: int
    window: int
    tokens: float
    home: int = 0
    arrived: simpy.Event | None = None


def simulate(
    model: PipelineModel,
    setting: Setting,
    windows: Windows,
    *,
    count: int = usual_windows,
    seed: int | None = 0,
) -> Played:
    """Play `count` windows, `windows` again and again. `seed` None: every batch takes its mean time.

    Windows of many batches are played less often.
    """
    batches = sum(map(len, windows)) / len(windows)
    count = max(min(count, int(most_batches / batches)), 8)
    return _Stage(model, setting, tuple(islice(cycle(windows), count)), seed).play()


@dataclass(slots=True)
class _Tally:
    """Seconds of a stage by what it did, and where the count began."""

    parts: dict[str, float] = field(default_factory=dict)

    def add(self, part: str, seconds: float) -> None:
        self.parts[part] = self.parts.get(part, 0.0) + seconds


class _Stage:
    """The stage on which the processes act."""

    def __init__(self, model: PipelineModel, setting: Setting, windows: Windows, seed: int | None) -> None:
        self.env = env = simpy.Environment()
        self.m, self.s, self.windows = model, setting, windows
        self.way = model.way(setting)
        self.random = None if seed is None else np.random.default_rng(seed)
        self.cpu = Together(env, lambda at_work: model.slowdown(len(at_work)))
        roles = Counter([*setting.target_places, *setting.drafter_places])
        shared = [place for place, count in roles.items() if count > 1]
        together = shared if model.sharing_gain is not None else []
        self.turns = {place: simpy.Resource(env) for place in shared if place not in together}
        self.together = {place: Together(env, model.slowdown_on_one) for place in together}
        # Pageable copies of a GPU exclude each other, and half of their time (see `keeps_driver`) its driver.
        self.copiers = {place: simpy.Resource(env) for place in together}
        self.drivers = {place: simpy.Resource(env) for place in together}
        self.links: dict[tuple[Any, Any, str], simpy.Resource] = {}
        self.q_pre = simpy.Store(env, setting.prefetch_depth)
        self.q_hs = [simpy.Store(env, setting.depth) for _ in range(setting.queues)]
        self.changed = env.event()
        self.done = env.event()
        self.sent = [0] * len(windows)
        self.open_window = self.stepped = self.trained = 0
        self.under_way = [0.0] * setting.drafters
        self.last_home = setting.drafters - 1
        self.forwarded = self.untrained = 0  # lockstep
        self.owed_away = 0.0
        self.ends: list[float] = []
        self.tallies = {stage: _Tally() for stage in ("prefetch", "target", "drafter")}
        self.samples: list[Sample] = []
        self.steps: list[float] = []
        self.first = max(int(warmup_share * len(windows)), 1)  # counted from the end of this many windows

    def play(self) -> Played:
        """Until the last window has stepped."""
        self.env.process(self.prefetch())
        for index in range(self.s.targets):
            self.env.process(self.target(index))
        for index in range(self.s.drafters):
            self.env.process(self.drafter(index))
        self.env.run(until=self.done)
        ends = np.array(self.ends)
        range_s = float(ends[-1] - ends[self.first - 1])
        threads = {"prefetch": 1, "target": self.s.targets, "drafter": self.s.drafters}
        return Played(
            tokens=tuple(sum(window) for window in self.windows[self.first :]),
            seconds=tuple(np.diff(ends)[self.first - 1 :].tolist()),
            shares={
                stage: {part: s / range_s / threads[stage] for part, s in tally.parts.items()}
                for stage, tally in self.tallies.items()
            },
            samples=tuple(self.samples),
            steps_s=tuple(self.steps),
        )

    # What all of them do

    def took(self, stage: str, part: str, since: float) -> None:
        """A stage did something since then; what came before the count is left out."""
        if len(self.ends) >= self.first:
            begin = max(since, self.ends[self.first - 1])
            self.tallies[stage].add(part, self.env.now - begin)

    def until(self, ready: Callable[[], bool], stage: str, name: str) -> Process:
        since = self.env.now
        while not ready():
            yield self.changed
        self.took(stage, name, since)

    def notify(self) -> None:
        event, self.changed = self.changed, self.env.event()
        event.succeed()

    def wait(self, event: simpy.Event, stage: str, name: str) -> Generator[Any, Any, Any]:
        since = self.env.now
        value = yield event
        self.took(stage, name, since)
        return value

    def vary(self, stage: str, seconds: float) -> float:
        spread = self.m.noise.get(stage, 0.0)
        if self.random is None or spread <= 0:
            return seconds
        sigma = math.sqrt(math.log1p(spread**2))
        return seconds * math.exp(self.random.normal(-(sigma**2) / 2, sigma))

    def compute(self, stage: str, seconds: float, place: int) -> Generator[Any, Any, float]:
        """Work on a device; how long it took, waits for the device aside."""
        if place in self.turns:
            with self.turns[place].request() as turn:
                yield from self.wait(turn, stage, "device_wait")
                begin = self.env.now
                yield from self.spend(stage, seconds)
            return float(self.env.now - begin)
        if place not in self.together:
            begin = self.env.now
            yield from self.spend(stage, seconds)
            return float(self.env.now - begin)
        yield self.env.timeout(enqueueing_s)
        with self.drivers[place].request() as turn:
            yield from self.wait(turn, stage, "device_wait")
        begin = self.env.now
        if seconds > 0:
            yield from self.wait(self.together[place].work(stage, seconds), stage, "work")
        return float(self.env.now - begin)

    def spend(self, stage: str, seconds: float) -> Process:
        if seconds > 0:
            event = self.cpu.work(stage, seconds) if self.m.cores else self.env.timeout(seconds)
            yield from self.wait(event, stage, "work")

    def hop(self, src: object, dst: object, path: str, tokens: float) -> Process:
        """One copy over a link, which makes one at a time."""
        link = self.links.get((src, dst, path))
        if link is None:
            link = self.links[src, dst, path] = simpy.Resource(self.env)
        with link.request() as turn:
            yield turn
            yield self.env.timeout(self.hop_s(src, path, tokens))

    def hop_s(self, src: object, path: str, tokens: float) -> float:
        factor = self.m.copy_factor(path, src[1]) if isinstance(src, tuple) and src[0] == "t" else 1.0
        return self.m.hop_s(path, tokens) * factor

    def own_copy(self, stage: str, hop: Process) -> Process:
        """A copy that the stage's thread waits for."""
        since = self.env.now
        yield from hop
        self.took(stage, "copy", since)

    def pageable(self, src: object, dst: object, path: str, tokens: float, place: int) -> Process:
        """A copy to or from the host's own memory, from or to the device there."""
        if place not in self.copiers:
            yield from self.hop(src, dst, path, tokens)
            return
        seconds = self.hop_s(src, path, tokens)
        with self.copiers[place].request() as turn:
            yield turn
            with self.drivers[place].request() as driver:
                yield driver
                yield self.env.timeout(keeps_driver * seconds)
            yield self.env.timeout((1.0 - keeps_driver) * seconds)

    # The three kinds of stage

    def prefetch(self) -> Process:
        number = 0
        for window, batches in enumerate(self.windows):
            for tokens in batches:
                begin = self.env.now
                yield from self.spend("prefetch", self.vary("prefetch", self.m.pack.at(tokens)))
                self.samples.append(("prefetch", 0, window, tokens, self.env.now - begin))
                yield from self.wait(self.q_pre.put(_Item(number, window, tokens)), "prefetch", "put q_pre")
                number += 1

    def target(self, index: int) -> Process:
        ring: list[simpy.Event | None] = [None] * send_buffers
        place, factor = self.s.target_places[index], self.m.target_factor(index)
        while True:
            item: _Item = yield from self.wait(self.q_pre.get(), "target", "get q_pre")
            if self.s.lockstep:
                yield from self.until(lambda: not self.untrained, "target", "barrier")
            seconds = self.vary("target", self.m.forward.at(item.tokens) * factor)
            took = yield from self.compute("target", seconds, place)
            self.samples.append(("target", index, item.window, item.tokens, took))
            yield from self.spend("target", self.m.target_extra.at(item.tokens))
            if self.s.lockstep:
                self.forwarded += 1
                self.turn()
                yield from self.until(lambda: self.untrained > 0, "target", "barrier")
            window = item.window
            yield from self.until(partial(self.may_send, window), "target", "window_turn")
            item.home = self.reserve(item.tokens, index)
            yield from self.load(item, index, ring)
            queue = self.q_hs[0 if self.s.shared_queue else item.home]
            yield from self.wait(queue.put(item), "target", "put q_hs")
            self.sent[window] += 1
            if self.sent[window] == len(self.windows[window]):
                self.open_window += 1
                self.notify()

    def may_send(self, window: int) -> bool:
        return self.open_window >= window

    def may_train(self, window: int) -> bool:
        return self.stepped >= window

    def turn(self) -> None:
        """Lockstep: open the second phase when every target that can still get a batch has forwarded."""
        left = sum(map(len, self.windows)) - self.rounds_done()
        if self.forwarded and self.forwarded >= min(self.s.targets, left):
            self.untrained, self.forwarded = self.forwarded, 0
            self.notify()

    def rounds_done(self) -> int:
        return sum(map(len, self.windows[: self.stepped])) + self.trained

    def reserve(self, tokens: float, target: int) -> int:
        count = self.s.drafters
        if self.s.dispatch == "local":
            home = target % count
        else:
            in_turn = [(self.last_home + 1 + step) % count for step in range(count)]
            least = self.s.dispatch == "least_depth"
            home = min(in_turn, key=lambda d: self.under_way[d]) if least else in_turn[0]
        self.under_way[home] += tokens
        self.last_home = home
        return home

    def load(self, item: _Item, index: int, ring: list[simpy.Event | None]) -> Process:
        """The way of the bytes as far as it is the target's matter."""
        if self.way == "pageable":
            place = self.s.target_places[index]
            copy = self.pageable(("t", index), "host", "pageable down", item.tokens, place)
            yield from self.own_copy("target", copy)
            return
        if self.s.within(index, item.home):
            return
        before = ring.pop(0)
        if before is not None and not before.processed:
            yield from self.wait(before, "target", "copy_wait")
        journey = self.journey(item, index)
        item.arrived = self.env.process(journey)
        ring.append(item.arrived)

    def journey(self, item: _Item, index: int) -> Process:
        src, home = ("t", index), ("d", item.home)
        if self.way == "pinned":
            yield from self.hop(src, "host", "pinned down", item.tokens)
            yield from self.hop("host", home, "pinned up", item.tokens)
        else:
            yield from self.hop(src, home, "peer", item.tokens)

    def drafter(self, index: int) -> Process:
        queue = self.q_hs[0 if self.s.shared_queue else index]
        place, previous = self.s.drafter_places[index], None
        while True:
            if self.s.lockstep:
                yield from self.until(lambda: self.untrained > 0, "drafter", "barrier")
            item: _Item = yield from self.wait(queue.get(), "drafter", "get q_hs")
            yield from self.unload(item, index)
            window = item.window
            yield from self.until(partial(self.may_train, window), "drafter", "window_wait")
            took = yield from self.compute(
                "drafter", self.vary("drafter", self.m.backward.at(item.tokens)), place
            )
            self.samples.append(("drafter", index, window, item.tokens, took))
            yield from self.spend("drafter", self.m.drafter_extra.at(item.tokens))
            self.release(previous)
            previous = item
            self.trained += 1
            last = self.trained == len(self.windows[window])
            if last or self.s.lockstep:
                self.release(previous)
                previous = None
            if last:
                yield from self.complete()
            if self.s.lockstep:
                self.untrained -= 1
                self.notify()

    def unload(self, item: _Item, index: int) -> Process:
        if self.way == "pageable":
            place = self.s.drafter_places[index]
            copy = self.pageable("host", ("d", index), "pageable up", item.tokens, place)
            yield from self.own_copy("drafter", copy)
            return
        if item.arrived is not None and not item.arrived.processed:
            yield from self.wait(item.arrived, "drafter", "copy_wait")
        if self.is_away(item, index):
            copy = self.hop(("d", item.home), ("d", index), "move", item.tokens)
            yield from self.own_copy("drafter", copy)

    def is_away(self, item: _Item, index: int) -> bool:
        """Whether it lies on another drafter's device: as often as was seen, else as it is played."""
        share = self.m.away_share
        if share is not None and self.s.shared_queue and self.s.drafters > 1:
            self.owed_away += share if self.random is None else float(self.random.random() < share)
            if self.owed_away < 1.0:
                return False
            self.owed_away -= 1.0
            return True
        return item.home != index and self.s.drafter_places[item.home] != self.s.drafter_places[index]

    def release(self, item: _Item | None) -> None:
        if item is not None:
            self.under_way[item.home] -= item.tokens

    def complete(self) -> Process:
        took = yield from self.compute(
            "drafter", self.vary("step", self.m.window_s(self.s.drafters)), self.s.drafter_places[0]
        )
        self.steps.append(took)
        self.ends.append(self.env.now)
        self.stepped, self.trained = self.stepped + 1, 0
        if self.stepped == len(self.windows):
            self.done.succeed()
        self.notify()
