"""The process between the recorder and the command it records: nothing that it started outlives it.

    python launcher.py FD -- COMMAND ...

FD is one end of a socket pair. The recorder sends bytes: 0 lets the command begin, any other is a signal
number for the command's process group. The launcher answers with JSON lines: {"pid"}, then {"started"} or
{"error"}, and at the end {"exit", "killed", "left", "cpu_s", "peak_rss_bytes"}.

What the command leaves behind when it ends is killed after a moment; when the socket closes because the
recorder died, even by SIGKILL, everything is killed at once. As a child subreaper the launcher finds those
descendants too that were orphaned or opened a session of their own. If the launcher itself is killed, the
kernel kills the command (PR_SET_PDEATHSIG).

Runs by path with `python -I -S`, so it uses the standard library only. Knows nothing of runs.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import sys
import time
from typing import NoReturn

pr_set_pdeathsig, pr_set_child_subreaper = 1, 36  # linux/prctl.h
settle_s = 1.0  # what an ended command's children get to end by themselves
kill_limit_s = 5.0  # after that a process is reported as impossible to kill


def main(argv: list[str]) -> int:
    """Run the command behind `--` and report to the socket. Returns the launcher's own exit code."""
    control = socket.socket(fileno=int(argv[1]))
    control.set_inheritable(False)
    ctypes.CDLL(None).prctl(pr_set_child_subreaper, 1, 0, 0, 0)
    launch = _Launch(control, argv[argv.index("--") + 1 :])
    try:
        if launch.begin():
            launch.attend()
    except (BrokenPipeError, ConnectionResetError):
        pass  # the recorder is gone; what is left is killed below
    killed, left = launch.sweep()
    if launch.status is not None:
        launch.report_exit(killed, left)
    return 1 if left else 0


class _Launch:
    """One command from fork to the end of its last descendant."""

    def __init__(self, control: socket.socket, command: list[str]) -> None:
        self._control, self._command = control, command
        self.status: int | None = None  # as waitpid gives it
        self._usage = (0.0, 0)  # CPU seconds, peak resident bytes
        self._wake_read, wake_write = os.pipe()
        os.set_blocking(wake_write, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_write)

    def begin(self) -> bool:
        """Fork, wait for the word to go, exec. False when the recorder vanished or the exec failed."""
        gate_read, gate_write = os.pipe()
        failure_read, failure_write = os.pipe()
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(gate_write)
            os.close(failure_read)
            _become(self._command, gate_read, failure_write, parent)
        os.close(gate_read)
        os.close(failure_write)
        with contextlib.suppress(OSError):  # the child does the same; whoever is first
            os.setpgid(self.pid, self.pid)
        self._tell(pid=self.pid)
        if self._control.recv(1) != b"\0":
            return False
        with contextlib.suppress(BrokenPipeError):  # killed at the gate: `attend` will tell
            os.write(gate_write, b"\0")
        os.close(gate_write)
        with os.fdopen(failure_read) as failure:  # exec closes the other end
            error = failure.read()
        self._tell(**({"error": error} if error else {"started": True}))
        return not error

    def attend(self) -> None:
        """Pass signals on until the command has ended or the recorder is gone."""
        self._reap()
        while self.status is None:
            control = self._control.fileno()
            ready, _, _ = select.select([control, self._wake_read], [], [])
            if self._wake_read in ready:
                os.read(self._wake_read, 4096)
                self._reap()
            if control in ready and self.status is None:
                numbers = self._control.recv(64)
                if not numbers:
                    return
                for number in numbers:  # the pid cannot have been used again: it is not reaped yet
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.killpg(self.pid, number)

    def sweep(self) -> tuple[int, list[int]]:
        """Kill what is left; returns how many were killed, and the pids of those that would not die."""
        started = time.monotonic()
        grace_s = settle_s if self.status is not None else 0.0
        killed: set[int] = set()
        while True:
            # Who died since the last look is not alive, but must not stay behind as a zombie either.
            nobody = self._reap()
            alive = [] if nobody else descendants(os.getpid())
            waited_s = time.monotonic() - started
            if nobody or waited_s > grace_s + kill_limit_s:
                return len(killed), alive
            if waited_s >= grace_s:
                killed.update(alive)
                for pid in alive:
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)

    def _reap(self) -> bool:
        """Take leave of the dead. Whether nobody is left: to a subreaper all descendants are children."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return True
            if pid == 0:
                return False
            if pid == self.pid:
                self.status = status
                self._usage = usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024

    def report_exit(self, killed: int, left: list[int]) -> None:
        """Tell the recorder how the command ended; its exit code is negative for a signal."""
        assert self.status is not None
        own = os.times()
        with contextlib.suppress(OSError):  # nobody may be listening any more
            self._tell(
                exit=os.waitstatus_to_exitcode(self.status),
                killed=killed,
                left=left,
                cpu_s=self._usage[0] + own.user + own.system,
                peak_rss_bytes=self._usage[1],
            )

    def _tell(self, **message: object) -> None:
        self._control.sendall(json.dumps(message).encode() + b"\n")


def _become(command: list[str], gate: int, failure: int, parent: int) -> NoReturn:
    """In the forked child: wait at the gate, then turn into the command."""
    error = ""
    try:
        os.setpgid(0, 0)
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL, 0, 0, 0)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # ignored by Python, not by other programs
            signal.signal(number, signal.SIG_DFL)
        # The parent may have died before the death signal was asked for.
        if os.getppid() == parent and os.read(gate, 1) == b"\0":
            os.execvp(command[0], command)
    except OSError as problem:
        error = os.strerror(problem.errno) if problem.errno else str(problem)
    finally:
        os.write(failure, error.encode())
        os._exit(127)


def descendants(root: int) -> list[int]:
    """Living processes below `root`, parents before children, without `root` and without zombies."""
    children: dict[int, list[tuple[int, bool]]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - runs beside the trainer, so cheaply
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123 - the same
                state, parent = file.read().rpartition(b")")[2].split(maxsplit=2)[:2]
        except (OSError, ValueError):
            continue  # it ended meanwhile
        children.setdefault(int(parent), []).append((int(name), state not in (b"Z", b"X")))
    found: list[int] = []
    queue = [root]
    while queue:
        for pid, alive in children.get(queue.pop(0), []):
            queue.append(pid)
            if alive:
                found.append(pid)
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv))
