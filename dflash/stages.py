"""The three kinds of worker loop: Prefetch, TargetForward, DrafterStep. Each is one thread on one device.

A stage takes from what is before it, works, and passes on. Its time is covered by host-clock spans that do
not overlap. CUDA runs behind Python: a stage dispatches at most one batch ahead of its device. A stage that
fails stops the whole pipeline with its error. Knows nothing of how bytes travel.
"""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from dflash.batch import Batch, HiddenStates, WindowInfo
from dflash.channel import Channel, ChannelClosed
from dflash.compiling import working
from dflash.contract.errors import ran_out_of_memory
from dflash.contract.events import Probe
from dflash.devices import Device, Moment, Timing
from dflash.out_of_memory import explain
from dflash.pipeline import PipelineState
from dflash.replicas import Replica
from dflash.schedule import Schedule, overlapped
from dflash.target import Target
from dflash.transport import Transport
from dflash.window import WindowTurns
from dflash.window_progress import WindowProgress


class Stage:
    """One worker thread. Subclasses say what it does in `work`."""

    kind = "stage"

    def __init__(self, index: int, device: Device | None, state: PipelineState, probe: Probe) -> None:
        self.index, self.device, self._state = index, device, state
        self.place = device.name if device else "cpu"
        self.probe = probe.bind(self.kind, index, self.place)
        self.batch: Batch | None = None  # in hand, for error messages
        self.thread = threading.Thread(target=self._run, name=f"{self.kind}-{index}", daemon=True)

    def _run(self) -> None:
        self.probe.mark("start")
        try:
            if self.device is not None:
                self.device.bind_thread()
            self.work()
        except Exception as error:  # noqa: BLE001 - the thread boundary: every failure ends the pipeline
            self._fail(error)
        finally:
            self.probe.mark("stop")

    def _fail(self, error: Exception) -> None:
        text, found = f"{type(error).__name__}: {error}", None
        if ran_out_of_memory(text):
            with suppress(RuntimeError):  # a device in trouble may refuse even its figures
                figures = self.device.memory_figures() if self.device else {}
                found = explain(text, figures, self.batch, self._state.depths())
        number = None if self.batch is None else self.batch.id
        name = f"{self.kind} {self.index}"
        self._state.fail(error, stage=name, device=self.place, batch=number, found=found)

    @abstractmethod
    def work(self) -> None:
        """Loop until there is nothing left."""


class Prefetch(Stage):
    """Packs batches ahead of the targets."""

    kind = "prefetch"

    def __init__(
        self, batches: Iterator[Batch], out: Channel[Batch], state: PipelineState, probe: Probe
    ) -> None:
        super().__init__(0, None, state, probe)
        self._batches, self._out = batches, out
        self.batches_made = 0

    def work(self) -> None:
        """Pack and put until the data ends."""
        while True:
            start_ns = time.monotonic_ns()
            batch = next(self._batches, None)
            if batch is None:
                break
            self.batch = batch
            self.probe.emit_span("pack", start_ns, time.monotonic_ns(), **_facts(batch))
            self._out.put(batch, self.probe)
            self.batches_made += 1
        self._out.close()


class GpuSpans:
    """Turns finished device timings into spans with clock "gpu". Empty on logical devices."""

    def __init__(self, name: str, probe: Probe) -> None:
        self._name, self._probe = name, probe
        self._open: list[tuple[Timing, Batch]] = []

    def add(self, timing: Timing | None, batch: Batch) -> None:
        """A timing that was stopped on the device's stream."""
        if timing is not None:
            self._open.append((timing, batch))

    def emit_done(self) -> None:
        """Emit those whose work has ended; never waits."""
        while self._open and self._open[0][0].done():
            timing, batch = self._open.pop(0)
            start_ns, end_ns = timing.ends_ns()
            self._probe.emit_span(self._name, start_ns, end_ns, clock="gpu", **_facts(batch))


@dataclass(slots=True)
class InFlight:
    """A batch dispatched to a device, and the moment that its work ends."""

    batch: Batch
    moment: Moment
    item: HiddenStates | None = None


class TargetForward(Stage):
    """Runs the frozen target and sends the tapped states."""

    kind = "target"

    def __init__(
        self,
        index: int,
        device: Device,
        target: Target,
        source: Channel[Batch],
        transport: Transport,
        turns: WindowTurns,
        state: PipelineState,
        probe: Probe,
        schedule: Schedule = overlapped,
    ) -> None:
        super().__init__(index, device, state, probe)
        self._schedule = schedule
        self._device, self._target = device, target
        self._source, self._transport, self._turns = source, transport, turns
        self._gpu_spans = GpuSpans("forward", self.probe)

    def work(self) -> None:
        """Forward and send until the source is drained."""
        previous: InFlight | None = None
        while True:
            try:
                batch = self._source.get(self.probe)
            except ChannelClosed:
                break
            self.batch = batch
            self._schedule.await_forward(self.probe)
            item = self._forward(batch)
            moment = self._device.record()
            if self._schedule.in_phases:
                _wait_for_device(InFlight(batch, moment), self.probe)
            self._schedule.forwarded(self.probe)
            self._turns.wait(batch, self.probe)
            self._transport.send(item, self.index, self.probe)
            self._turns.sent(batch)
            _wait_for_device(previous, self.probe)
            previous = InFlight(batch, moment)
            self._gpu_spans.emit_done()
        self._schedule.leave()
        _wait_for_device(previous, self.probe)
        self._gpu_spans.emit_done()
        self._transport.close()

    def _forward(self, batch: Batch) -> HiddenStates:
        with self._device.computing(self.probe, **_facts(batch)):
            timing = self._device.start_timing()
            with self.probe.span("forward", **_facts(batch)):
                taps = self._target.forward(batch)
        if timing is not None:
            timing.stop()
        self._gpu_spans.add(timing, batch)
        return HiddenStates(batch=batch, taps=taps)


class DrafterStep(Stage):
    """Trains one replica on what the transport brings; the last batch of a window completes it.

    The window's step is enqueued behind it, and the next batch behind that.
    """

    kind = "drafter"

    def __init__(
        self,
        index: int,
        replica: Replica,
        transport: Transport,
        progress: WindowProgress,
        complete: Callable[[WindowInfo, Probe], Moment],
        state: PipelineState,
        probe: Probe,
        schedule: Schedule = overlapped,
    ) -> None:
        super().__init__(index, replica.device, state, probe)
        self._schedule = schedule
        self._device, self._replica = replica.device, replica
        self._transport, self._progress, self._complete = transport, progress, complete
        self.latest: Moment | None = None  # end of the work dispatched last
        self._gpu_spans = GpuSpans("backward", self.probe)

    def work(self) -> None:
        """Receive and train until the transport is drained."""
        previous: InFlight | None = None
        while True:
            self._schedule.await_step(self.probe)
            try:
                item = self._transport.recv(self.index, self.probe)
            except ChannelClosed:
                break
            self.batch = batch = item.batch
            self._progress.wait_for(batch.window, self.probe)
            self._replica.await_weights()
            moment = self._train(item)
            self._release(previous)
            previous = InFlight(batch, moment, item)
            stepped = None
            if self._progress.batch_trained(batch.window):
                stepped = self._complete(batch.window, self.probe)
            if self._schedule.in_phases:
                self._release(previous)
                previous = None
                if stepped is not None:
                    stepped.wait()
            self._schedule.stepped()
            self._gpu_spans.emit_done()
        self._release(previous)
        self._gpu_spans.emit_done()

    def _train(self, item: HiddenStates) -> Moment:
        with self._device.computing(self.probe, **_facts(item.batch)):
            timing = self._device.start_timing()
            with self.probe.span("backward", **_facts(item.batch)), working():
                self._replica.train(item)
        if timing is not None:
            timing.stop()
        self._gpu_spans.add(timing, item.batch)
        self.latest = moment = self._device.record()
        return moment

    def _release(self, flight: InFlight | None) -> None:
        _wait_for_device(flight, self.probe)
        if flight is not None and flight.item is not None:
            self._transport.done(flight.item)


def _wait_for_device(flight: InFlight | None, probe: Probe) -> None:
    if flight is not None and not flight.moment.done():
        with probe.span("gpu_wait", batch=flight.batch.id, window=flight.batch.window.step):
            flight.moment.wait()


def _facts(batch: Batch) -> dict[str, object]:
    return {"batch": batch.id, "window": batch.window.step, "tokens": batch.tokens}
