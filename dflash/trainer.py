"""Wires a run together, starts its threads, watches them, and ends it: done, stopped or failed.

`prepare` does everything that can refuse (data, model, devices, checkpoint) before a thread starts.
Knows nothing of command lines or exit codes.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import torch

from dflash.batch import Batch, WindowInfo
from dflash.channel import Channel
from dflash.checkpoints.resumption import Resumption, find_named
from dflash.checkpoints.saving import CheckpointWriter
from dflash.compilations import CompileWatch
from dflash.contract.config import TrainConfig
from dflash.contract.errors import DFlashError
from dflash.contract.events import Probe, silent
from dflash.counters import Counters
from dflash.data.documents import Documents
from dflash.devices import DeviceSet, Moment
from dflash.edge_check import check_edges
from dflash.evaluations import Evaluations
from dflash.held_parts import HeldParts
from dflash.loss_health import LossHealth
from dflash.memory_check import MemoryPlan
from dflash.packing import LayoutKind
from dflash.pipeline import PipelineState
from dflash.preparing import (
    check_memory,
    find_place,
    join_replicas,
    most_bytes,
    open_evaluations,
    set_up_torch,
    warm_up_on,
)
from dflash.replicas import ReplicaGroup
from dflash.routes import Route, find_routes
from dflash.schedule import open_schedule
from dflash.stages import DrafterStep, Prefetch, Stage, TargetForward
from dflash.stopwatch import Stopwatch
from dflash.target import Target
from dflash.train_result import TrainResult
from dflash.transport import Transport, open_transport
from dflash.trimming import trim
from dflash.window import Course, WindowTurns, batches
from dflash.window_books import WindowBooks
from dflash.window_figures import WindowFigures
from dflash.window_progress import WindowProgress
from dflash.worst_case import make_worst

join_grace_s = 20.0  # after a failure
stop_grace_s = 120.0  # after a stop, when a long forward or a checkpoint may be worth waiting for
memory_every_s = 1.0  # between readings of the allocators


class StuckThreadsError(DFlashError):
    """Threads did not end within the grace period; only the end of the process can end them."""


@dataclass(kw_only=True)
class Trainer:
    """One run, ready to start. Made by `prepare`."""

    config: TrainConfig
    devices: DeviceSet
    documents: Documents
    targets: list[Target]
    group: ReplicaGroup
    layout: LayoutKind
    memory: MemoryPlan
    routes: tuple[Route, ...]  # of transport.path=auto; empty for other paths
    item_bytes: int  # of the states of a full batch
    course: Course
    resumption: Resumption | None
    checkpoints: CheckpointWriter | None  # None: none are written
    probe: Probe
    counters: Counters
    prepared: Stopwatch  # what took how long before anything started
    window_done: Callable[[WindowInfo, WindowFigures], None] = lambda window, figures: None
    evaluations: Evaluations  # on documents held out
    documents_held_out: int  # kept out of training, whether they are evaluated or not
    interrupted: Callable[[], bool] = lambda: (
        False
    )  # whether the evaluation at the end is not wanted any more
    warned: Callable[[str], None] = lambda text: None
    _health: LossHealth = field(init=False, default_factory=LossHealth)
    _next_memory_s: float = field(init=False, default=0.0)
    _timed_out: bool = field(init=False, default=False)  # run.max_seconds came before any other end

    @property
    def first_step(self) -> int:
        """The optimizer step that this process begins with."""
        return 0 if self.resumption is None else self.resumption.step

    @property
    def total_steps(self) -> int:
        """The step that the run ends before."""
        return self.course.total_steps

    def __post_init__(self) -> None:
        self.q_pre: Channel[Batch] = Channel("q_pre", self.config.pipeline.prefetch_depth)
        self.q_pre.add_writer()
        with self.prepared.part("transport"):
            self.transport: Transport = open_transport(
                self.config.transport_choice,
                self.devices,
                self.config.devices,
                self.probe,
                ways={(route.src, route.dst): route.path for route in self.routes},
                item_bytes=self.item_bytes,
            )
        self.evaluations.warn = self.warn
        if self.checkpoints is not None:
            self.checkpoints.warn = self.warn
        self.turns = WindowTurns(self.first_step)
        self.progress = WindowProgress(self.first_step)
        self.schedule = open_schedule(self.config.pipeline.schedule, len(self.targets))
        self.books = WindowBooks(self._tell, self._fail_step)
        parts = (self.q_pre, self.transport, self.turns, self.progress, self.schedule, self.books)
        self.state = PipelineState(parts)
        self.state.depths = self.depths
        self._compilations = CompileWatch(self.probe)

    def run(self, watch: Callable[[], None] = lambda: None) -> TrainResult:
        """Train to the end or until stopped. `watch` is called several times a second by this thread.

        Raises the first failure (StageError, or what `watch` raised), after all threads have ended.
        """
        stages = self._stages()
        for device in self.devices.all:
            device.record().wait()  # weights were copied on this thread's streams, stages have their own
        if not self.devices.emulated:
            torch.cuda.empty_cache()  # of warm-ups and held-out states: streams cannot take each other's
        for device in self.devices.all:
            device.forget_peaks()
        self._compilations.install()
        for stage in stages:
            stage.thread.start()
            self._compilations.add_thread(stage.thread, stage.probe)
        interval_s = sys.getswitchinterval()
        sys.setswitchinterval(self.config.pipeline.switch_interval_ms / 1e3)
        try:
            self._supervise(stages, watch)
        except BaseException as error:  # also an interrupt: the stages must not outlive their trainer
            self.state.stop_now(f"{type(error).__name__} in the main thread")
            self._end(stages)
            raise
        finally:
            sys.setswitchinterval(interval_s)
        self._end(stages)
        if self.checkpoints is not None:
            self.checkpoints.save(self.group, last=True)
        if self.state.stop_reason is None or self._timed_out:
            self.evaluations.close(self.group, self.probe, lambda: not self.interrupted())
        return self._result()

    def _supervise(self, stages: list[Stage], watch: Callable[[], None]) -> None:
        """Look after the stages until they have ended, or have been told to."""
        started, limit_s = time.monotonic(), self.config.run.max_seconds
        while not self.state.aborted and any(stage.thread.is_alive() for stage in stages):
            watch()
            self._compilations.look()
            self._measure_memory()
            if limit_s > 0 and time.monotonic() - started > limit_s:
                self._timed_out = self.state.stop_reason is None or self._timed_out
                self.state.request_stop(f"run.max_seconds = {limit_s:g}")
            for stage in stages:
                stage.thread.join(timeout=0.2 / len(stages))

    def _end(self, stages: list[Stage]) -> None:
        """Wait for the threads. Raises the first failure."""
        self._join(stages)
        with suppress(RuntimeError):  # a device in trouble may refuse even its figures
            self._measure_memory(at_once=True)
        self._close_books()
        self._compilations.look()
        self._compilations.remove()
        try:
            self.transport.finish()
        finally:
            if self.state.first_error is not None:  # a device that it broke fails here too: an echo
                raise self.state.first_error
        self.books.settle()  # raises for a last step that failed after the run was told to stop

    def _stages(self) -> list[Stage]:
        packed = batches(
            self.documents,
            self.config,
            layout=self.layout,
            start_step=self.first_step,
            begins_at=self.course.begins_at,
        )
        trimmed = map(trim, packed) if self.config.transport.trim else packed
        stream = map(self.group.leader.plan, trimmed)
        self._prefetch = Prefetch(stream, self.q_pre, self.state, self.probe)
        forwards = [
            TargetForward(
                index,
                device,
                target,
                self.q_pre,
                self.transport,
                self.turns,
                self.state,
                self.probe,
                self.schedule,
            )
            for index, (device, target) in enumerate(zip(self.devices.targets, self.targets, strict=True))
        ]
        self._drafters = [
            DrafterStep(
                index,
                replica,
                self.transport,
                self.progress,
                self._complete,
                self.state,
                self.probe,
                self.schedule,
            )
            for index, replica in enumerate(self.group.replicas)
        ]
        return [self._prefetch, *forwards, *self._drafters]

    def _complete(self, window: WindowInfo, probe: Probe) -> Moment:
        """The last batch of `window` was dispatched: step, save, and let the next window train."""
        moments = [drafter.latest for drafter in self._drafters]
        end = self.group.complete(window, moments, probe)
        self.books.add(end, probe)
        every, done = self.config.run.checkpoint_every, window.step + 1
        if self.checkpoints is not None and every > 0 and done % every == 0:
            with probe.span("checkpoint", window=window.step):
                self.books.settle()  # raises for a step that was not made
                self.checkpoints.save(self.group, last=False)
        if self.evaluations.are_due(done) and self.state.stop_reason is None:
            with probe.span("evaluate", window=window.step):
                self.books.settle()
                self.evaluations.evaluate(self.group, done, probe, lambda: self.state.stop_reason is None)
        if self.state.stop_reason is not None and done < self.total_steps:
            self.state.stop_now(self.state.stop_reason)
        self.progress.advance()
        return end.moment

    def _tell(self, window: WindowInfo, figures: WindowFigures) -> None:
        """The step of `window` was made."""
        self.counters.window_done(window, figures)
        self._mark(window, figures)
        self.window_done(window, figures)

    def _fail_step(self, error: Exception) -> None:
        leader = self.group.leader.device.name
        self.state.fail(error, stage="drafter 0", device=leader, batch=None)

    def _mark(self, window: WindowInfo, figures: WindowFigures) -> None:
        note = {
            "loss": figures.loss,
            "loss_denominator": window.denominator,
            "accuracy": figures.accuracy,
            "slot_accuracy": [None if s is None else round(s, 5) for s in figures.slot_accuracy],
            "grad_norm": figures.grad_norm,
            "lr": figures.lr,
            "documents": window.documents,
            "supervised_tokens": window.supervised_tokens,
            "processed_tokens": window.processed_tokens,
            "states_absent": figures.states_absent,
        }
        self.probe.mark("window", window=window.step, tokens=window.tokens, note=json.dumps(note))
        for trouble in self._health.check(window, figures):
            self.probe.mark("warning", window=window.step, note=trouble)

    def _measure_memory(self, *, at_once: bool = False) -> None:
        """Gauges of every device's allocator, about once a second however long windows are."""
        if not at_once and time.monotonic() < self._next_memory_s:
            return
        self._next_memory_s = time.monotonic() + memory_every_s
        for device in {device.name: device for device in self.devices.all}.values():
            for name, value in device.memory_figures().items():
                self.probe.gauge(name, value, device=device.name)

    def warn(self, text: str) -> None:
        """A warning for people, in the events too."""
        self.probe.mark("warning", note=text)
        self.warned(text)

    def _join(self, stages: list[Stage]) -> None:
        grace_s = stop_grace_s if self.state.first_error is None else join_grace_s
        deadline = time.monotonic() + grace_s
        for stage in stages:
            stage.thread.join(timeout=max(0.0, deadline - time.monotonic()))
        stuck = [stage.thread.name for stage in stages if stage.thread.is_alive()]
        if stuck:
            raise StuckThreadsError(
                "threads did not end after the pipeline was stopped",
                where=", ".join(stuck),
                found=str(self.state.first_error or self.state.stop_reason),
                expected=f"to end within {grace_s:g} s",
            )

    def _close_books(self) -> None:
        """The last steps are made and told."""
        if not self.books.close():
            raise StuckThreadsError(
                "the last step did not end after the pipeline was stopped",
                where=self.group.leader.device.name,
                found=str(self.state.first_error or self.state.stop_reason),
                expected="to be made within two minutes",
            )

    def _result(self) -> TrainResult:
        ended_early = self.first_step + self.counters.steps < self.total_steps
        return TrainResult(
            steps_done=self.group.optimizer.steps_done,
            optimizer_updates=self.group.optimizer.updates_made(),
            losses=tuple(self.counters.losses),
            learned=self.counters.learned(),
            evaluations=tuple(self.evaluations.done),
            documents_trained=self.counters.documents,
            tokens_trained=self.counters.tokens,
            states_absent=self.counters.states_absent,
            batches_made=self._prefetch.batches_made,
            batches_trained=self.counters.batches,
            batches_dropped=self._prefetch.batches_made - self.counters.batches,
            stop_reason=self.state.stop_reason if ended_early else None,
            checkpoint=None if self.checkpoints is None else self.checkpoints.newest,
            drafter=self.group.leader.drafter,
        )

    def depths(self) -> list[tuple[str, int, int]]:
        """(channel, depth, capacity) of every queue now."""
        return [(self.q_pre.name, self.q_pre.depth(), self.q_pre.capacity), *self.transport.depths()]


def prepare(
    config: TrainConfig,
    *,
    run_path: Path | None = None,
    probe: Probe = silent,
    parts: HeldParts | None = None,
    worst_case: bool = False,
) -> Trainer:
    """Load and check everything. Raises UsageErrors; starts nothing.

    `parts`: of a run before in this process, which has ended; what they hold is not loaded again.
    `worst_case`: train on made-up documents, of which no mix needs more memory (see `make_worst`).
    """
    taken = Stopwatch()
    parts = parts or HeldParts(config)
    parts.check(config)
    devices = parts.devices
    with taken.part("links"):
        check_edges(devices, config.transport_choice)
        routes = find_routes(devices, config.transport_choice, config.devices)
    set_up_torch(config, devices)
    with taken.part("checkpoint"):
        found = find_named(config)
    with probe.span("load"):
        with taken.part("data"):
            documents = parts.documents
            if worst_case:
                config, documents = make_worst(config, documents)
        with taken.part("memory plan"):
            memory = check_memory(config, parts, documents, routes)
        roles = parts.take_roles(config, taken)
    with taken.part("drafters"):
        course, resumption, checkpoints = find_place(config, parts, roles, documents, found, run_path)
        group = join_replicas(config, roles, course, resumption, routes)
    with taken.part("leak probe"):
        layout = parts.layout(config)
    if not parts.is_warm(config, layout):
        with taken.part("compiling"):
            warm_up_on(batches(documents, config, layout=layout), devices, roles.targets, group)
    with taken.part("held out"):
        evaluations = open_evaluations(config, parts, roles, layout, worst_case=worst_case)
    return Trainer(
        config=config,
        devices=devices,
        documents=documents,
        targets=roles.targets,
        group=group,
        layout=layout,
        memory=memory,
        routes=routes,
        item_bytes=most_bytes(config, documents, roles),
        course=course,
        resumption=resumption,
        checkpoints=checkpoints,
        evaluations=evaluations,
        documents_held_out=0 if worst_case or parts.held_out is None else len(parts.held_out.items),
        probe=probe,
        counters=Counters(course.total_steps, first_step=resumption.step if resumption else 0),
        prepared=taken,
    )
