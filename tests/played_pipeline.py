"""Plays a pipeline by discrete events and writes the run it would leave: queues, waits, copies, windows.

Faults are played by their mechanism (a slow pack, a copy on a thread, a shared queue), not by their symptom.
Prefetch, targets and drafters are coroutines that yield either a time to spend or a condition to wait for.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dflash.contract.config import TrainConfig, from_values
from tests.run_builder import RunBuilder

Step = float | Callable[[], bool]
Process = Generator[Step, None, None]


@dataclass(frozen=True, kw_only=True)
class Play:
    """What is played. Times in seconds a batch; `jitter` is their relative spread."""

    targets: int = 3
    drafters: int = 1
    windows: int = 40
    batches_per_window: int = 6
    tokens: int = 1000  # a batch
    item_bytes: int = 20_000_000
    pack_s: float = 0.02
    forward_s: float = 1.0
    slower_targets: Mapping[int, float] = field(default_factory=dict)  # index: times as long
    gather_s: float = 0.0
    backward_s: float = 0.2
    optimizer_s: float = 0.05  # a window
    target_copy_s: float = 0.0  # on the target's own thread, through host memory
    drafter_copy_s: float = 0.0  # on the drafter's own thread, from host memory
    away_copy_s: float = 0.0  # on the drafter's own thread, for a batch homed elsewhere
    link_copy_s: float = 0.0  # beside the stages
    # Copies beside the stages that send buffers and drafters wait for, one at a time on a link, 0: none.
    down_s: Mapping[int, float] = field(default_factory=dict)  # of a target to pinned memory
    up_s: Mapping[int, float] = field(default_factory=dict)  # from pinned memory to a drafter
    peer_s: Mapping[tuple[int, int], float] = field(default_factory=dict)  # from a target to a drafter
    preset: str = "peer"
    depth: int = 2
    prefetch_depth: int = 8
    rest_bytes: float = 2e8  # resident memory besides the queue
    jitter: float = 0.08
    warmup_windows: int = 2  # played at a third of the speed
    seed: int = 0
    emulated: bool = True

    @property
    def config(self) -> TrainConfig:
        return from_values(
            {
                "pipeline.split": f"{self.targets}-{self.drafters}",
                "pipeline.token_budget": 1024,
                "pipeline.prefetch_depth": self.prefetch_depth,
                "data.max_length": 256,
                "window.tokens": 8192,
                "transport.preset": self.preset,
                "transport.depth": self.depth,
                "devices.pageable_gigabytes_per_s": 0.1,
            }
        )


def play(path: Path, **settings: Any) -> Path:
    """Play a pipeline and write its run at `path`."""
    played = Play(**settings)
    builder = RunBuilder(path, played.config, emulated=played.emulated)
    _Stage(played, builder).run()
    return builder.finish()


@dataclass
class _Queue:
    name: str
    capacity: int
    writers: int
    items: deque[Any] = field(default_factory=deque)

    def has_room(self) -> bool:
        return len(self.items) < self.capacity

    def has_news(self) -> bool:
        """An item, or the end."""
        return bool(self.items) or self.writers == 0


class _Stage:
    """The stage on which the processes act: clock, queues, counters."""

    def __init__(self, played: Play, builder: RunBuilder) -> None:
        self.p, self.builder, self.now = played, builder, 0.0
        self.random = random.Random(played.seed)
        self.q_pre = _Queue("q_pre", played.prefetch_depth, writers=1)
        shared = played.config.transport_choice.queue == "shared"
        names = ["q_hs"] if shared else [f"q_hs.{i}" for i in range(played.drafters)]
        self.q_hs = [_Queue(name, played.depth, writers=played.targets) for name in names]
        self.free_s: dict[Any, float] = {}  # when a link has made its copies
        self.sending: dict[int, deque[float]] = {}  # by target: when its send buffers are free
        self.stepped = 0  # windows
        self.trained = 0  # batches
        self.sent = 0

    def run(self) -> None:
        processes: list[Process] = [self.prefetch()]
        processes += [self.target(i) for i in range(self.p.targets)]
        processes += [self.drafter(i) for i in range(self.p.drafters)]
        waiting: list[tuple[Callable[[], bool], Process]] = []
        due: list[tuple[float, int, Process]] = []
        order = itertools.count()
        for process in processes:
            heapq.heappush(due, (0.0, next(order), process))
        while due:
            self.now, _, process = heapq.heappop(due)
            self._advance(process, due, waiting, order)
            while (ready := next((w for w in waiting if w[0]()), None)) is not None:
                waiting.remove(ready)
                self._advance(ready[1], due, waiting, order)
        assert not waiting, "the played pipeline got stuck"

    def _advance(self, process: Process, due: Any, waiting: Any, order: Any) -> None:
        step = next(process, None)
        if callable(step):
            waiting.append((step, process))
        elif step is not None:
            heapq.heappush(due, (self.now + step, next(order), process))

    def spend(self, stage: str, index: int, name: str, mean_s: float, **fields: Any) -> Process:
        """Take about `mean_s`, and say so."""
        if mean_s > 0:
            slow = 3.0 if self.stepped < self.p.warmup_windows else 1.0
            begin = self.now
            yield slow * mean_s * max(self.random.gauss(1.0, self.p.jitter), 0.2)
            self.builder.span(stage, index, name, begin, self.now, **fields)

    def wait(self, stage: str, index: int, name: str, until: Callable[[], bool], **fields: Any) -> Process:
        begin = self.now
        yield until
        if self.now > begin or name in ("get", "put"):
            self.builder.span(stage, index, name, begin, self.now, **fields)

    def changed(self, queue: _Queue, stage: str, index: int) -> None:
        depth = float(len(queue.items))
        self.builder.gauge(stage, index, "depth", self.now, depth, channel=queue.name)
        if queue is not self.q_pre and self.p.rest_bytes:
            staged = sum(len(q.items) for q in self.q_hs) * self.p.item_bytes
            self.builder.sample("host", "tree", "rss_anon_bytes", self.now, self.p.rest_bytes + staged)

    def prefetch(self) -> Process:
        for batch in range(self.p.windows * self.p.batches_per_window):
            facts = {"batch": batch, "window": batch // self.p.batches_per_window, "tokens": self.p.tokens}
            yield from self.spend("prefetch", 0, "pack", self.p.pack_s, **facts)
            yield from self.wait("prefetch", 0, "put", self.q_pre.has_room, channel="q_pre")
            self.q_pre.items.append(facts)
            self.changed(self.q_pre, "prefetch", 0)
        self.q_pre.writers = 0
        self.builder.mark("prefetch", 0, "stop", self.now)

    def target(self, index: int) -> Process:
        me, queue = ("target", index), self.q_pre
        homes = itertools.cycle(range(self.p.drafters))  # round robin, each target for itself
        while True:
            yield from self.wait(*me, "get", queue.has_news, channel="q_pre")
            if not queue.items:
                break
            facts = queue.items.popleft()
            self.changed(queue, *me)
            forward_s = self.p.forward_s * self.p.slower_targets.get(index, 1.0)
            yield from self.spend(*me, "forward", forward_s, **facts)
            yield from self.spend(*me, "gather", self.p.gather_s, **facts)
            first = facts["window"] * self.p.batches_per_window
            yield from self.wait(*me, "window_turn", lambda first=first: self.sent >= first)
            size = self.p.item_bytes
            copy = {"src": f"logical:{index}", "dst": "cpu", "path": "pageable", "bytes": size}
            yield from self.spend(*me, "copy", self.p.target_copy_s, **facts, **copy)
            home = next(homes)
            out = self.q_hs[0] if len(self.q_hs) == 1 else min(self.q_hs, key=lambda q: len(q.items))
            ready_s = yield from self.carry(index, self.q_hs.index(out), facts)
            self.sent += 1
            yield from self.wait(*me, "put", out.has_room, channel=out.name)
            self.note_link_copy(facts["batch"])
            out.items.append((facts, home, ready_s))
            self.changed(out, *me)
        self.builder.mark(*me, "stop", self.now)
        for out in self.q_hs:
            out.writers -= 1

    def carry(self, target: int, drafter: int, facts: dict[str, Any]) -> Generator[Step, None, float]:
        """Start a batch's copies once one of two send buffers is free; when the last of them ends."""
        host, here, there = "host", f"logical:target{target}", f"logical:drafter{drafter}"
        hops = [
            (here, host, "pinned", self.p.down_s.get(target, 0.0)),
            (host, there, "pinned", self.p.up_s.get(drafter, 0.0)),
            (here, there, "peer", self.p.peer_s.get((target, drafter), 0.0)),
        ]
        buffers = self.sending.setdefault(target, deque([0.0, 0.0]))
        yield from self.await_copy("target", target, buffers.popleft(), facts)
        ready_s = self.now
        for src, dst, path, seconds in hops:
            if seconds:
                begin_s = max(self.free_s.get((src, dst), 0.0), ready_s)
                ready_s = self.free_s[src, dst] = begin_s + seconds
                ends = {"src": src, "dst": dst, "path": path, "bytes": self.p.item_bytes}
                self.builder.span("link", target, "copy", begin_s, ready_s, batch=facts["batch"], **ends)
        buffers.append(ready_s)
        return ready_s

    def await_copy(self, stage: str, index: int, until_s: float, facts: dict[str, Any]) -> Process:
        begin_s = self.now
        if until_s > begin_s:
            yield until_s - begin_s
            self.builder.span(stage, index, "copy_wait", begin_s, self.now, batch=facts["batch"])

    def note_link_copy(self, batch: int) -> None:
        if self.p.link_copy_s:
            size, begin = self.p.item_bytes, self.now
            end = begin + self.p.link_copy_s
            self.builder.span(
                "link", 0, "copy", begin, end, batch=batch, path="peer", bytes=size, src="a", dst="b"
            )

    def drafter(self, index: int) -> Process:
        me, queue = ("drafter", index), self.q_hs[index % len(self.q_hs)]
        while True:
            yield from self.wait(*me, "get", queue.has_news, channel=queue.name)
            if not queue.items:
                break
            facts, home, ready_s = queue.items.popleft()
            away = self.p.preset == "shared" and home != index
            note = "away" if away else "home"
            self.builder.mark(*me, "take", self.now, batch=facts["batch"], bytes=self.p.item_bytes, note=note)
            self.changed(queue, *me)
            yield from self.drafter_copies(index, facts, away)
            yield from self.await_copy("drafter", index, ready_s, facts)
            yield from self.wait(*me, "window_wait", lambda w=facts["window"]: self.stepped >= w)
            yield from self.spend(*me, "backward", self.p.backward_s, **facts)
            self.trained += 1
            if self.trained == (self.stepped + 1) * self.p.batches_per_window:
                yield from self.step(index)
        self.builder.mark(*me, "stop", self.now)

    def drafter_copies(self, index: int, facts: dict[str, Any], away: bool) -> Process:
        size, here = self.p.item_bytes, f"logical:{index}"
        from_host = {"src": "cpu", "dst": here, "path": "pageable", "bytes": size}
        yield from self.spend("drafter", index, "copy", self.p.drafter_copy_s, **facts, **from_host)
        if away:
            across = {"src": "logical:9", "dst": here, "path": "peer", "bytes": size}
            yield from self.spend("drafter", index, "copy", self.p.away_copy_s, **facts, **across)

    def step(self, index: int) -> Process:
        window, tokens = self.stepped, self.p.tokens * self.p.batches_per_window
        yield from self.spend("drafter", index, "optimizer", self.p.optimizer_s, window=window)
        told = {"documents": 24, "supervised_tokens": tokens // 2, "processed_tokens": 2 * tokens}
        self.builder.window(window, self.now, tokens, **told)
        self.stepped += 1
