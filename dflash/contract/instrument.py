"""Tells a recording what happens inside somebody else's trainer: queues, stages and steps, in ten lines.

Outside a recording everything here does nothing and imports nothing. It never stops the training: when a
recording cannot be written to, one RuntimeWarning says so. docs/probe-api.md shows its use, and which names
the diagnosis knows. Knows nothing of torch.
"""

from __future__ import annotations

import atexit
import itertools
import json
import math
import os
import queue
import threading
import time
import warnings
import weakref
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from dflash.contract.errors import DFlashError, UsageError
from dflash.contract.rundir import RunDir, environment_variable

if TYPE_CHECKING:
    from dflash.contract.arrowlog import ArrowLog
    from dflash.contract.events import Probe

AnyQueue = TypeVar("AnyQueue", bound="queue.Queue[Any]")
_nothing: AbstractContextManager[None] = nullcontext()
_opened = itertools.count()  # instruments of this process


class Instrument:
    """The events of this process, for the recorder that started it. Methods may be called from any thread.

    Make one after forking: in a forked child it falls silent.
    """

    def __init__(self, workload: Mapping[str, str | int | float | bool] | None = None) -> None:
        """`workload`: what must be equal for two runs to be comparable (model, data, step size)."""
        self._log: ArrowLog | None = None
        self._probe: Probe | None = None
        self._local = threading.local()
        self._lock = threading.Lock()
        self._windows = itertools.count()
        path = os.environ.get(environment_variable)
        if path:
            try:
                self._open(RunDir(Path(path)), workload)
            except (DFlashError, OSError) as error:
                warnings.warn(f"this run is not recorded from inside: {error}", RuntimeWarning, stacklevel=2)

    @property
    def recorded(self) -> bool:
        """Whether anything is kept."""
        return self._probe is not None

    def stage(self, name: str, index: int = 0, device: str = "cpu") -> Stage:
        """One worker of the pipeline: enter it in the worker's own thread.

        `target` and `drafter` (and `prefetch`, which feeds targets) are the names that causes are known for.
        `index` tells equal workers apart; `device` is where its work runs, such as cuda:0.
        """
        probe = self._probe
        return Stage(self, None if probe is None else probe.bind(name, index, device))

    def watch_queue(self, watched: AnyQueue, channel: str, capacity: int | None = None) -> AnyQueue:
        """Tell of every put and get of a `queue.Queue`: how long it waited, and how full the queue is then.

        Returns the queue itself. `channel` is q_pre (in front of targets), q_hs or q_hs.0, q_hs.1, … (in
        front of drafters), or any other name. `capacity` is its maxsize unless told. Raises UsageError for
        what is no queue.Queue or is watched already.
        """
        if not isinstance(watched, queue.Queue):
            raise UsageError(
                "this queue cannot be watched",
                where=channel,
                found=type(watched).__name__,
                expected="a queue.Queue or a subclass of it",
                remedy="for others: `with stage.wait('get', channel)` round the call, and `depth` after it",
            )
        if "_dflash_channel" in vars(watched):
            raise UsageError(
                "the queue is watched already", where=channel, found=vars(watched)["_dflash_channel"]
            )
        probe = self._probe
        if probe is not None:
            _watch(self, watched, channel)
            size = capacity if capacity is not None else watched.maxsize
            if size > 0:
                probe.gauge("capacity", size, channel=channel)
        return watched

    def depth(self, channel: str, items: int, capacity: int | None = None) -> None:
        """How many items a queue of your own kind holds now. Call it after every change."""
        probe = self.thread_probe()
        if probe is not None:
            probe.gauge("depth", items, channel=channel)
            if capacity is not None:
                probe.gauge("capacity", capacity, channel=channel)

    def window_done(self, tokens: int, loss: float | None = None, **figures: float) -> None:
        """An optimizer step is complete, and `tokens` real tokens have reached it since the one before.

        Plain numbers only: turning a tensor on a GPU into one would wait for it. `figures` are kept beside
        the loss: accuracy, grad_norm, lr, documents, supervised_tokens, processed_tokens.
        """
        probe = self._probe
        if probe is None:
            return
        told = {**({} if loss is None else {"loss": loss}), **figures}
        note = json.dumps({name: _finite(value) for name, value in told.items()})
        with self._lock:  # numbers and times rise together
            probe.mark("window", window=next(self._windows), tokens=int(tokens), note=note)

    def close(self) -> None:
        """Write what is left. It is done at exit anyway; a second call does nothing."""
        log, self._log, self._probe = self._log, None, None
        if log is not None:
            try:
                log.close()
            except DFlashError as error:
                warnings.warn(f"events were lost: {error}", RuntimeWarning, stacklevel=2)

    def thread_probe(self) -> Probe | None:
        """The probe of the stage that the calling thread is in, else one of the thread's own name."""
        whole = self._probe
        if whole is None:
            return None
        probe: Probe | None = getattr(self._local, "probe", None)
        if probe is None:
            probe = self._local.probe = whole.bind(threading.current_thread().name)
        return probe

    def enter(self, probe: Probe | None) -> Probe | None:
        """Make `probe` the calling thread's; returns the one before."""
        before: Probe | None = getattr(self._local, "probe", None)
        self._local.probe = probe
        return before

    def _open(self, run: RunDir, workload: Mapping[str, str | int | float | bool] | None) -> None:
        from dflash.contract.events import open_events
        from dflash.contract.gil_range import publish_gil_range

        manifest = run.manifest()
        if "gil" not in manifest:  # the first process to get here speaks for all
            publish_gil_range(run)
            told = {} if workload is None else {"workload": dict(workload)}
            run.update(pids={**manifest["pids"], "trainer": os.getpid()}, **told)
        self._log, self._probe = open_events(run.events / f"probe-{os.getpid()}-{next(_opened)}.arrow")
        atexit.register(self.close)
        myself = weakref.ref(self)
        os.register_at_fork(after_in_child=lambda: _fall_silent(myself()))


class Stage:
    """What one worker does, told from its own thread. Spans of a thread must not lie inside each other."""

    def __init__(self, instrument: Instrument, probe: Probe | None) -> None:
        self._instrument, self._own = instrument, probe
        self._before: Probe | None = None

    @property
    def _probe(self) -> Probe | None:
        """Read it once a call: another thread may close the instrument at any moment."""
        return self._own if self._instrument.recorded else None

    def __enter__(self) -> Self:
        probe = self._probe
        if probe is not None:
            self._before = self._instrument.enter(probe)
            probe.mark("start")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        probe = self._probe
        if probe is not None:
            probe.mark("stop")
            self._instrument.enter(self._before)

    def work(
        self, name: str, *, tokens: int | None = None, batch: int | None = None
    ) -> AbstractContextManager[None]:
        """The time in which the block works. The batch's real tokens belong to the span of its main work.

        Of targets that is `forward`, of drafters `backward` (forward and backward together); of others the
        longest span that has tokens.
        """
        probe = self._probe
        return _nothing if probe is None else probe.span(name, tokens=tokens, batch=batch)

    def wait(self, name: str, channel: str | None = None) -> AbstractContextManager[None]:
        """The time in which the block waits: `get` or `put` of a channel, `copy_wait`, `gpu_wait`, …."""
        probe = self._probe
        return _nothing if probe is None else probe.span(name, channel=channel)

    def copy(
        self, path: str, size_bytes: int | None = None, *, src: str | None = None, dst: str | None = None
    ) -> AbstractContextManager[None]:
        """The time in which the block copies: by `path` host, pageable, pinned or peer."""
        probe = self._probe
        if probe is None:
            return _nothing
        return probe.span("copy", path=path, bytes=size_bytes, src=src, dst=dst)

    def took(self, *, home: bool, size_bytes: int | None = None) -> None:
        """A drafter took a batch that lay on its own device (`home`) or on another one."""
        probe = self._probe
        if probe is not None:
            probe.mark("take", note="home" if home else "away", bytes=size_bytes)


def _watch(instrument: Instrument, watched: queue.Queue[Any], channel: str) -> None:
    """Replace the four methods through which everything passes, on this one queue."""
    put, get, insert, remove = watched.put, watched.get, watched._put, watched._get

    def tell_wait(name: str, start_ns: int) -> None:
        probe = instrument.thread_probe()
        if probe is not None:
            probe.emit_span(name, start_ns, time.monotonic_ns(), channel=channel)

    def tell_depth() -> None:  # under the queue's own lock, so the order of depths is the true one
        probe = instrument.thread_probe()
        if probe is not None:
            probe.gauge("depth", watched._qsize(), channel=channel)

    def watched_put(item: Any, block: bool = True, timeout: float | None = None) -> None:
        start_ns = time.monotonic_ns()
        try:
            put(item, block, timeout)
        finally:
            tell_wait("put", start_ns)

    def watched_get(block: bool = True, timeout: float | None = None) -> Any:
        start_ns = time.monotonic_ns()
        try:
            return get(block, timeout)
        finally:
            tell_wait("get", start_ns)

    def watched_insert(item: Any) -> None:
        insert(item)
        tell_depth()

    def watched_remove() -> Any:
        item = remove()
        tell_depth()
        return item

    replaced = {"put": watched_put, "get": watched_get, "_put": watched_insert, "_get": watched_remove}
    vars(watched).update(replaced, _dflash_channel=channel)


def _fall_silent(instrument: Instrument | None) -> None:
    """In a forked child the log has no thread: what it was given would only pile up."""
    if instrument is not None:
        instrument._log, instrument._probe = None, None


def _finite(value: float) -> float | None:
    number = float(value)
    return number if math.isfinite(number) else None
