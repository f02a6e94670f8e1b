"""A trainer process that stays between trials, and one trial in it as the recorder wants to see a command.

`python -m dflash serve` loads models and data once and carries out what it is asked for over a socket; the
messages are those of `dflash/serving.py`. It lives behind the recorder's launcher, so that nothing of it
outlives the search, and is ended by its pid. Knows nothing of which trials there are.
"""

from __future__ import annotations

import contextlib
import select
import shutil
import signal
import socket
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from dflash.contract.json_socket import JsonSocket, PeerGone
from profiler.child import Child, Exit

WindowEnds = list[tuple[int, int]]  # CLOCK_MONOTONIC in ns, tokens
exit_grace_s = 10.0  # for a process that has said its last word


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One run that a worker is asked for; `run_path` exists when it begins."""

    run_path: Path
    config_path: Path
    log: Path | None = None
    worst_case: bool = False

    def to_json(self) -> dict[str, Any]:
        log = None if self.log is None else str(self.log)
        return {
            "run": str(self.run_path),
            "config": str(self.config_path),
            "log": log,
            "worst_case": self.worst_case,
        }


class Worker:
    """The process. Starts held at the gate; models are loaded by its first run.

    `memory`: what it held after its last run, by place: used_bytes, limit_bytes. `doubt`: why no further run
    may be made in it; None: one may.
    """

    def __init__(
        self, trainer: Sequence[str], *, env: Mapping[str, str] | None = None, output: IO[bytes] | None = None
    ) -> None:
        """`trainer` starts a command line that ends in `serve --socket PATH`."""
        self.memory: dict[str, dict[str, float]] = {}
        self.doubt: str | None = None
        self._control: JsonSocket | None = None
        self._place = Path(tempfile.mkdtemp(prefix="dflash-"))  # only its owner may connect
        self._listener = socket.socket(socket.AF_UNIX)
        try:
            path = self._place / "socket"
            self._listener.bind(str(path))
            self._listener.listen(1)
            self._child = Child([*trainer, "serve", "--socket", str(path)], env=env, output=output)
        except BaseException:
            self._forget_socket()
            raise
        self._held = True  # at the gate
        self._order: Order | None = None  # not yet told

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def launcher_pid(self) -> int:
        """The ancestor of everything that the worker starts."""
        return self._child.launcher_pid

    @property
    def is_alive(self) -> bool:
        """Whether it still runs, as far as is known without waiting."""
        if self._control is not None:
            try:
                self._control.receive(0.0)  # between runs it has nothing to say
            except PeerGone:
                return False
        return self._child.wait(0.0) is None

    def begin(self, order: Order) -> None:
        """Ask for a run; a worker that is still coming up is asked as soon as it is there."""
        if self._held:
            self._held = False
            self._child.release()
        self._order = order
        self._send_order()

    def listen(self, timeout_s: float) -> dict[str, Any] | Exit | None:
        """The next message, or how the process ended, or None when neither came for `timeout_s`."""
        if self._control is None:
            self._accept(timeout_s)
            return self._child.wait(0.0)
        try:
            message = self._control.receive(timeout_s)
        except PeerGone:
            return self._child.wait(timeout_s)
        if message is not None and "memory" in message:
            self.memory = message["memory"]
        return message

    def ask_to_stop(self, reason: str) -> None:
        """Let the run in progress end after its window."""
        if self._control is not None:
            with contextlib.suppress(PeerGone):
                self._control.send({"stop": reason})

    def signal(self, number: int) -> None:
        """Send a signal to the process and all that it started in its group."""
        self._child.signal(number)

    def close(self) -> None:
        """End it: politely by hanging up, then by force. Safe to call twice."""
        if self._control is not None:
            self._control.close()
            if self.doubt is None:
                self._child.wait(exit_grace_s)
        self._forget_socket()
        self._child.close()

    def _accept(self, timeout_s: float) -> None:
        ready, _, _ = select.select([self._listener], [], [], timeout_s)
        if ready:
            connected, _ = self._listener.accept()
            self._control = JsonSocket(connected)
            self._forget_socket()
            self._send_order()

    def _send_order(self) -> None:
        if self._control is None or self._order is None:
            return
        with contextlib.suppress(PeerGone):  # `listen` will tell
            self._control.send(self._order.to_json())
        self._order = None

    def _forget_socket(self) -> None:
        self._listener.close()
        shutil.rmtree(self._place, ignore_errors=True)


@dataclass(slots=True)
class TrialInWorker:
    """One run of a worker: what `profiler.child.Child` is to the recorder.

    `on_windows` is told of windows as they end, and may answer why the run should be stopped.
    """

    worker: Worker
    order: Order
    on_windows: Callable[[WindowEnds], str | None] = lambda ends: None
    stopped_early: str | None = None
    pid: int = field(init=False)
    _exit: Exit | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.pid = self.worker.pid

    @property
    def launcher_pid(self) -> int:
        return self.worker.launcher_pid

    def release(self) -> None:
        """Let it begin."""
        self.worker.begin(self.order)

    def signal(self, number: int) -> None:
        """To the worker: after SIGINT and SIGTERM it ends its run, and itself."""
        self.worker.doubt = f"it was sent {signal.Signals(number).name}"
        self.worker.signal(number)

    def wait(self, timeout_s: float) -> Exit | None:
        """How the run ended, or None when it still goes on after `timeout_s`."""
        if self._exit is not None:
            return self._exit
        told = self.worker.listen(timeout_s)
        if isinstance(told, Exit):
            self.worker.doubt = "it ended"
            self._exit = told
        elif told is not None and "ended" in told:
            self._exit = Exit(code=int(told["ended"]))
        elif told is not None and "windows" in told and self.stopped_early is None:
            self.stopped_early = self.on_windows([(int(t), int(n)) for t, n in told["windows"]])
            if self.stopped_early is not None:
                self.worker.ask_to_stop(self.stopped_early)
        return self._exit

    def close(self) -> None:
        """A worker whose run has not ended is of no use any more."""
        if self._exit is None:
            self.worker.doubt = self.worker.doubt or "its run was given up"
            self.worker.close()
