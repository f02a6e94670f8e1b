"""A command run behind the launcher, seen from the recorder: its pid, its end, and no way to outlive us.

Knows nothing of runs or samples. A `Child` belongs to one thread at a time.
"""

from __future__ import annotations

import json
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

from dflash.contract.errors import UsageError
from profiler import launcher

start_limit_s = 30.0  # for a Python interpreter to come up on a crowded machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """How a command ended. `code` is negative for a signal, as in `subprocess`."""

    code: int
    killed: int = 0  # processes that it had left behind and that had to be killed
    left: tuple[int, ...] = ()  # pids that even SIGKILL did not end
    cpu_s: float | None = None
    peak_rss_bytes: int | None = None

    @property
    def signal_name(self) -> str | None:
        """SIGKILL and the like, or None after an ordinary exit."""
        if self.code >= 0:
            return None
        try:
            return signal.Signals(-self.code).name
        except ValueError:
            return f"signal {-self.code}"

    @property
    def shell_code(self) -> int:
        """The exit code as a shell shows it: 128 plus the signal number after a signal."""
        return self.code if self.code >= 0 else 128 - self.code


class Watched(Protocol):
    """What the recorder asks of a command that it started: see `Child`, which is one."""

    pid: int

    @property
    def launcher_pid(self) -> int: ...
    def release(self) -> None: ...
    def signal(self, number: int) -> None: ...
    def wait(self, timeout_s: float) -> Exit | None: ...
    def close(self) -> None: ...


class Child:
    """Started but held at the gate until `release`, so that its pid can be written down first."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        output: IO[bytes] | None = None,
    ) -> None:
        """`output` takes stdout and stderr, which are inherited without it. Standard input is empty."""
        self._command = list(command)
        self._control, theirs = socket.socketpair()
        self._buffer = b""
        self._exit: Exit | None = None
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", launcher.__file__, str(theirs.fileno()), "--", *self._command],
                env=None if env is None else dict(env),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        try:
            self.pid = int(self._expect("pid")["pid"])
        except BaseException:
            self.close()
            raise

    @property
    def launcher_pid(self) -> int:
        """The ancestor of everything that the command starts."""
        return self._process.pid

    def release(self) -> None:
        """Let the command begin. Raises UsageError when it cannot be executed."""
        self._control.sendall(b"\0")
        answer = self._expect("started", "error")
        if "error" in answer:
            self.close()
            raise UsageError("the command cannot be started", where=self._command[0], found=answer["error"])

    def signal(self, number: int) -> None:
        """Send a signal to the command's process group."""
        try:
            self._control.sendall(bytes([number]))
        except OSError:
            return  # the launcher has ended; `wait` will tell

    def wait(self, timeout_s: float) -> Exit | None:
        """How it ended, or None when it still runs after `timeout_s`."""
        if self._exit is None:
            message = self._receive(timeout_s)
            if message == {}:
                # Nobody but a third party kills the launcher; the kernel then kills the command.
                self._exit = Exit(code=-signal.SIGKILL)
            elif message is not None:
                self._exit = Exit(
                    code=message["exit"],
                    killed=message["killed"],
                    left=tuple(message["left"]),
                    cpu_s=message["cpu_s"],
                    peak_rss_bytes=message["peak_rss_bytes"],
                )
        return self._exit

    def close(self) -> None:
        """End whatever still runs, with SIGKILL, and release the launcher. Safe to call twice."""
        self._control.close()
        try:
            self._process.wait(launcher.settle_s + 2 * launcher.kill_limit_s)
        except subprocess.TimeoutExpired:  # stuck in the kernel: not ours to wait for
            self._process.kill()

    def _expect(self, *keys: str) -> dict[str, Any]:
        message = self._receive(start_limit_s)
        if not message or not any(key in message for key in keys):
            raise UsageError(
                "the process that watches over the command did not start",
                where=sys.executable,
                found="no answer" if message is None else message or "it ended",
            )
        return message

    def _receive(self, timeout_s: float) -> dict[str, Any] | None:
        """The next message; None after `timeout_s`; {} when the launcher has gone."""
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([self._control], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                return None
            try:
                data = self._control.recv(65536)
            except ConnectionResetError:
                data = b""
            if not data:
                return {}
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message


def log_tail(path: Path, lines: int = 5, limit_bytes: int = 8192) -> list[str]:
    """The last non-empty lines of a captured log; empty when it cannot be read."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - limit_bytes))
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return []
    return [line.rstrip() for line in text.splitlines() if line.strip()][-lines:]
