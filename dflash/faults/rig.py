"""A prepared trainer with places at which faults act. Replaces methods of that trainer's own objects.

Everything is put in place before the trainer starts, by its thread; what acts later runs on the thread of the
stage that it slows. Knows nothing of which fault acts, or why.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeVar

from dflash.batch import Batch, HiddenStates
from dflash.contract.errors import DeviceError
from dflash.contract.events import Probe
from dflash.faults.pace import Pace
from dflash.links import Link
from dflash.trainer import Trainer
from dflash.transport.carrier import Edge, LogicalCarrier
from dflash.transport.paths import AutoPath

OnBatch = Callable[[int, Batch], None]  # index of the stage, its batch; inside the stage's span of work
OnSend = Callable[[int, HiddenStates, Probe], None]  # outside of spans
T = TypeVar("T")
Beside = Callable[[threading.Event], None]  # a thread of its own, until the event


class Rig:
    """One trainer on logical devices, paced. Raises DeviceError for GPUs, which have a pace of their own."""

    def __init__(self, trainer: Trainer) -> None:
        if not trainer.devices.emulated:
            raise DeviceError(
                "faults are injected on logical devices only",
                where="--inject",
                remedy="set devices.kind=logical",
            )
        self.trainer = trainer
        self.pace = Pace(len(trainer.targets), len(trainer.group.replicas))
        self.window_tokens = trainer.config.window.tokens  # about
        self.step_s = [self.pace.step_s] * self.pace.drafters  # a token, by drafter
        self.launches = 1  # of a forward or step: how often its thread takes the GIL again
        self.packing: list[Callable[[Batch], None]] = []
        self.forwarding: list[OnBatch] = []
        self.training: list[OnBatch] = []
        self.sending: list[OnSend] = []
        self.beside: list[Beside] = []
        self._link_s: list[tuple[Callable[[Edge], bool], float]] = []  # seconds a token
        self._install()

    def slow_links(self, chosen: Callable[[Edge], bool], seconds_per_token: float) -> None:
        """Let copies over these edges take that long, whatever speed the configuration declares."""
        self._link_s.append((chosen, seconds_per_token))

    def is_target(self, edge: Edge, index: int | None = None) -> bool:
        """Whether the edge leads from a target (or from that one) to the host."""
        sources = self.trainer.devices.targets
        wanted = sources if index is None else sources[index : index + 1]
        return edge.dst is None and edge.src in wanted

    def is_drafter(self, edge: Edge) -> bool:
        """Whether the edge leads from the host to a drafter."""
        return edge.src is None and edge.dst in self.trainer.devices.drafters

    def is_to_drafter(self, edge: Edge, target: int | None = None, drafter: int | None = None) -> bool:
        """Whether the edge leads from a target to a drafter (or from that one, or to that one)."""
        sources, homes = self.trainer.devices.targets, self.trainer.devices.drafters
        return edge.src in (sources if target is None else sources[target : target + 1]) and edge.dst in (
            homes if drafter is None else homes[drafter : drafter + 1]
        )

    def go_round(self, target: int, drafter: int) -> None:
        """Let path auto have found the link between those two slow, as its probe finds a real one."""
        trainer, path = self.trainer, self.trainer.transport._path
        if not isinstance(path, AutoPath):
            return
        pair = trainer.devices.targets[target].name, trainer.devices.drafters[drafter].name
        path._ways = {**path._ways, pair: "pinned"}
        trainer.routes = tuple(
            replace(route, path="pinned", peer_gb_per_s=None, why="peer is slowed by --inject")
            if (route.src, route.dst) == pair
            else route
            for route in trainer.routes
        )

    def is_between_drafters(self, edge: Edge) -> bool:
        """Whether both ends are drafters."""
        drafters = self.trainer.devices.drafters
        return edge.src in drafters and edge.dst in drafters

    def _install(self) -> None:
        trainer = self.trainer
        for index, target in enumerate(trainer.targets):
            target.forward = partial(self._forward, index, target.forward)  # type: ignore[method-assign]
        for index, replica in enumerate(trainer.group.replicas):
            replica.train = partial(self._train, index, replica.train)  # type: ignore[method-assign]
        leader, transport = trainer.group.leader, trainer.transport
        leader.plan = partial(self._plan, leader.plan)  # type: ignore[method-assign]
        transport.send = partial(self._send, transport.send)  # type: ignore[method-assign]
        carrier = transport._carrier
        assert isinstance(carrier, LogicalCarrier)
        carrier._link = partial(self._link, carrier._link)  # type: ignore[method-assign]
        trainer.run = partial(self._run, trainer.run)  # type: ignore[method-assign]

    def _forward(self, index: int, forward: Callable[[Batch], T], batch: Batch) -> T:
        due_s = time.monotonic() + self.pace.forward_s * batch.tokens
        taps = forward(batch)
        self._sleep_until(due_s)
        for act in self.forwarding:
            act(index, batch)
        return taps

    def _train(self, index: int, train: Callable[[HiddenStates], None], item: HiddenStates) -> None:
        due_s = time.monotonic() + self.step_s[index] * item.batch.tokens
        train(item)
        self._sleep_until(due_s)
        for act in self.training:
            act(index, item.batch)

    def _sleep_until(self, due_s: float) -> None:
        """Sleep without the GIL, and take it again after each launch, which may then have to wait for it."""
        left_s = max(due_s - time.monotonic(), 0.0)
        for _ in range(self.launches):
            time.sleep(left_s / self.launches)

    def _plan(self, plan: Callable[[Batch], Batch], batch: Batch) -> Batch:
        planned = plan(batch)
        for act in self.packing:
            act(batch)
        return planned

    def _send(
        self,
        send: Callable[[HiddenStates, int, Probe], None],
        item: HiddenStates,
        target: int,
        probe: Probe,
    ) -> None:
        for act in self.sending:
            act(target, item, probe)
        send(item, target, probe)

    def _link(self, link_of: Callable[[Edge], Link], edge: Edge) -> Link:
        link = link_of(edge)
        for chosen, seconds_per_token in self._link_s:
            if chosen(edge):
                link.gigabytes_per_s = self._token_bytes / seconds_per_token / 1e9
        return link

    @property
    def _token_bytes(self) -> float:
        leader = self.trainer.group.leader
        return len(leader.drafter.spec.taps) * leader.drafter.spec.hidden * leader.embedding.element_size()

    def _run(self, run: Callable[..., T], *arguments: Callable[[], None]) -> T:
        ended = threading.Event()
        threads = [threading.Thread(target=work, args=(ended,), daemon=True) for work in self.beside]
        for thread in threads:
            thread.start()
        try:
            return run(*arguments)
        finally:
            ended.set()
            for thread in threads:
                thread.join()
