"""A run on disk: from a run directory and a configuration to a finished, stopped or failed run.json.

Owns what surrounds training: manifest, event log, signals, console lines, the closing books. The exit code is
0 for finished, 1 for failed, 2 for a request that cannot be carried out, 130 and 143 for SIGINT and SIGTERM.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
import transformers

from dflash.contract.arrowlog import ArrowLog
from dflash.contract.config import TrainConfig, all_knobs
from dflash.contract.errors import DFlashError
from dflash.contract.events import Probe, open_events
from dflash.contract.gil_range import publish_gil_range
from dflash.contract.processes import identify
from dflash.contract.rundir import RunDir, utc_now
from dflash.contract.steps import StepRange
from dflash.contract.streams import write_line
from dflash.contract.tracker_names import parse_trackers
from dflash.kernels import describe_kernels, slow_kernels
from dflash.objective import loss_in_words
from dflash.routes import describe_routes, doubt_peer
from dflash.trace_window import EventTap, TraceWindow
from dflash.trackers.feed import TrackerFeed, check_trackers
from dflash.train_result import TrainResult
from dflash.trainer import StuckThreadsError, Trainer, prepare
from dflash.work_count import count_work

signal_exit_codes = {signal.SIGINT: 130, signal.SIGTERM: 143}


class Interruption:
    """SIGINT and SIGTERM: the first ends the run after its window, the second at once."""

    def __init__(self) -> None:
        self.received: list[signal.Signals] = []
        self.trainer: Trainer | None = None
        self.closing = False  # the run's end is being written: a signal more is only taken down

    def install(self) -> None:
        """Take over both signals. Main thread only."""
        for number in signal_exit_codes:
            signal.signal(number, self._handle)

    def remove(self) -> None:
        """Both signals end the process again; the trainer is let go."""
        self.trainer = None
        for number in signal_exit_codes:
            signal.signal(number, signal.SIG_DFL)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        self.received.append(signal.Signals(number))
        if self.trainer is not None:
            self.trainer.state.request_stop(self.received[0].name)
        elif not self.closing:
            raise KeyboardInterrupt

    def watch(self) -> None:
        """Called by the main loop: a second signal stops at once. A handler must not take locks."""
        if self.trainer is not None and len(self.received) > 1:
            self.trainer.state.stop_now(self.received[0].name)

    @property
    def exit_code(self) -> int | None:
        return signal_exit_codes[self.received[0]] if self.received else None


@dataclass(slots=True)
class Session:
    """One run: what it writes and what it says."""

    run: RunDir
    config: TrainConfig
    trace: StepRange | None = None  # steps to look at with torch.profiler
    prepare_trainer: Callable[..., Trainer] = prepare
    interruption: Interruption = field(default_factory=Interruption)
    attend: Callable[[Trainer], None] = lambda trainer: None  # several times a second while it trains
    _feed: TrackerFeed | None = None
    _next_line_s: float = 0.0

    def carry_out(self) -> tuple[int, dict[str, Any]]:
        """Train; returns the exit code and the closing document. Prints errors and progress on stderr."""
        log, probe = open_events(self.run.events / f"trainer-{os.getpid()}.arrow")
        try:
            self.interruption.install()
            self.write_start()
            trackers = parse_trackers(self.config.run.trackers)
            check_trackers(trackers)
            if trackers:
                self._feed = TrackerFeed(log)
                probe = Probe(self._feed, probe.stage)
            tap = EventTap(self._feed or log)
            trainer = self.prepare_trainer(
                self.config, run_path=self.run.path, probe=Probe(tap, probe.stage) if self.trace else probe
            )
            self.announce(trainer)
            if self._feed is not None:
                self._feed.start(trackers, self.run.path, self.config.values(), trainer.warn)
            trainer.warned = lambda text: say(f"warning: {text}")
            trainer.interrupted = lambda: bool(self.interruption.received)
            with self._traced(trainer, tap):
                self.interruption.trainer = trainer
                result = trainer.run(lambda: self._watch(trainer))
            return self._close(log, result)
        except KeyboardInterrupt:
            self.interruption.closing = True
            code = self.interruption.exit_code or signal_exit_codes[signal.SIGINT]
            name = self.interruption.received[0].name if self.interruption.received else "SIGINT"
            say(f"stopped by {name} before the first step")
            return code, self._end(log, "stopped", name, code)
        except StuckThreadsError as error:
            say(error.render())
            code = self.interruption.exit_code or 1
            self._end(log, "failed", error.render(), code)
            os._exit(code)
        except DFlashError as error:
            say(error.render())
            return error.exit_code, self._end(log, "failed", error.render(), error.exit_code)
        except Exception as error:
            self._end(log, "failed", f"{type(error).__name__}: {error}", 1)
            raise  # a fault of ours: its traceback is wanted

    def write_start(self) -> None:
        """What is known before anything is loaded: configuration, workload, process, versions, the GIL."""
        values = self.config.values()
        signal_knobs = {k.path: values[k.path] for k in all_knobs if not k.meta.neutral}
        manifest = self.run.manifest()
        self.run.update(
            config=values,
            workload=signal_knobs,
            pids={**manifest["pids"], "trainer": os.getpid()},
            processes={**(manifest.get("processes") or {}), "trainer": identify(os.getpid())},
            versions={
                **manifest["versions"],
                "torch": torch.__version__,
                "transformers": transformers.__version__,
                "cuda": torch.version.cuda,
            },
        )
        publish_gil_range(self.run)

    def announce(self, trainer: Trainer) -> None:
        """What is known once everything is loaded: devices, kernels, links; said and written."""
        devices, choice = trainer.devices, self.config.transport_choice
        kernels = describe_kernels(self.config, trainer.targets[0], trainer.layout)
        links = {
            "link_gigabytes_per_s": self.config.devices.link_gigabytes_per_s,
            "pinned_gigabytes_per_s": self.config.devices.pinned_gigabytes_per_s,
            "pageable_gigabytes_per_s": self.config.devices.pageable_gigabytes_per_s,
            "link_latency_us": self.config.devices.link_latency_us,
        }
        self.run.update(
            emulated=devices.emulated,
            devices=devices.describe(),
            kernels=kernels,
            links=links if devices.emulated else None,
            memory_plan=trainer.memory.to_json(),
            operations=count_work(trainer).to_json(),
            transport_edges=[route.to_json() for route in trainer.routes] or None,
            resumed=None if trainer.resumption is None else trainer.resumption.to_json(),
            prepared_s={name: round(seconds, 3) for name, seconds in trainer.prepared.seconds.items()},
            data=_count_data(trainer),
        )
        say(f"prepared in {trainer.prepared.describe()}")
        for line in describe_routes(trainer.routes):
            say(f"transport: {line}")
        for place in trainer.memory.lacking():
            say(f"warning: by the memory plan this run does not fit into {place}; see `dflash-train plan`")
        doubts = doubt_peer(devices, choice, self.config.devices)
        for trouble in [*slow_kernels(self.config, trainer.targets[0]), *doubts]:
            say(f"warning: {trouble}")
            trainer.probe.mark("warning", note=trouble)
        where = "logical devices, links emulated" if devices.emulated else "CUDA"
        say(f"kernels: {', '.join(f'{k} {v}' for k, v in kernels.items())}")
        say(f"loss: {loss_in_words(self.config)}")
        say(
            f"split {self.config.split} on {where}; transport {choice}; "
            f"{len(trainer.documents.lengths)} documents, {trainer.total_steps} steps"
        )
        self._announce_rows(trainer)
        self._announce_held_out(trainer)
        self._announce_resumption(trainer)

    def _announce_rows(self, trainer: Trainer) -> None:
        troubles = trainer.documents.books.warnings
        for trouble in troubles:
            say(f"warning: {trouble}")
            trainer.probe.mark("warning", note=trouble)
        if troubles:
            say("`dflash-train check-data` lists the rows")

    def _announce_held_out(self, trainer: Trainer) -> None:
        trainer.evaluations.told = lambda evaluation: say(evaluation.line())
        every, held_out = self.config.run.evaluate_every, trainer.evaluations.held_out
        if trainer.documents_held_out:
            looked_at = "none evaluated (run.evaluate_every=0)"
            if held_out is not None:
                looked_at = f"{held_out.documents} of them evaluated every {every} steps and at the end"
            say(f"held out: {trainer.documents_held_out} documents, {looked_at}")
        elif every and self.config.data.held_out > 0:
            say("warning: data.held_out is so small that no document is held out: nothing is evaluated")

    def _announce_resumption(self, trainer: Trainer) -> None:
        if trainer.resumption is None:
            return
        for line in trainer.resumption.lines():
            say(line)
        for trouble in trainer.resumption.warnings:
            say(f"warning: {trouble}")
            trainer.probe.mark("warning", note=trouble)

    @contextmanager
    def _traced(self, trainer: Trainer, tap: EventTap) -> Iterator[None]:
        """Profile the steps that were asked for, if any. Raises UsageError when the run has them not."""
        if self.trace is None:
            yield
            return
        self.trace.check_within(trainer.first_step, trainer.total_steps)
        window = TraceWindow(self.trace, self.run, tap)
        trainer.window_done = lambda info, _figures: window.reached(info.step + 1)
        window.reached(trainer.first_step)
        try:
            yield
        finally:
            window.close()
            if window.error is not None:
                say(f"no trace: {type(window.error).__name__}: {window.error}")
            elif window.path.exists():
                say(f"trace of steps {self.trace.first} to {self.trace.last}: {window.path}")

    def _watch(self, trainer: Trainer) -> None:
        self.interruption.watch()
        self.attend(trainer)
        now = time.monotonic()
        if now >= self._next_line_s:
            self._next_line_s = now + self.config.run.console_every_s
            if trainer.counters.steps:
                say(trainer.counters.line(trainer.depths()))

    def _close(self, log: ArrowLog, result: TrainResult) -> tuple[int, dict[str, Any]]:
        code, status, reason = 0, "finished", None
        if result.stop_reason is not None:
            status, reason = "stopped", result.stop_reason
            code = self.interruption.exit_code or 0
        if not result.losses and code == 0:
            code, status, reason = 1, "failed", "no optimizer step was made"
        document = self._end(log, status, reason, code, result)
        last = f", last loss {result.losses[-1]:.3f}" if result.losses else ""
        why = f" ({reason})" if reason else ""
        say(f"{status} at step {result.steps_done}{why}{last}; run: {self.run.path}")
        return code, document

    def _end(
        self, log: ArrowLog, status: str, reason: str | None, code: int, result: TrainResult | None = None
    ) -> dict[str, Any]:
        self.interruption.closing = True
        if self._feed is not None:
            self._feed.close(status)
        log.close()
        books = result.books() if result else None
        learned = (
            {"loss_is": loss_in_words(self.config), **result.learned} if result and result.learned else None
        )
        evaluations = [each.to_json() for each in result.evaluations] if result else None
        self.run.update(
            status=status,
            reason=reason,
            exit_code=code,
            ended_utc=utc_now(),
            books=books,
            learned=learned,
            evaluations=evaluations,
        )
        return {
            "run": str(self.run.path),
            "status": status,
            "reason": reason,
            "exit_code": code,
            "books": books,
            "learned": learned,
            "evaluations": evaluations,
            "last_loss": result.losses[-1] if result and result.losses else None,
            "checkpoint": str(result.checkpoint) if result and result.checkpoint else None,
        }


def _count_data(trainer: Trainer) -> dict[str, int]:
    """What became of the rows, for run.json."""
    books = trainer.documents.books
    return {
        "rows_read": books.rows_read,
        "rows_usable": books.rows_usable,
        "rows_refused": len(books.refused),
        "documents_cut": books.documents_cut,
        "documents_held_out": trainer.documents_held_out,
    }


def say(text: str) -> None:
    """One message for people, on stderr. Nobody reading any more is no reason to stop training."""
    write_line(sys.stderr, text)


def print_document(document: dict[str, Any]) -> None:
    """The one JSON document on stdout, in ASCII so that any locale can carry it."""
    write_line(sys.stdout, json.dumps(document, allow_nan=False))
