"""Trainers forked from a process that has everything imported, so that a run of seconds starts at once.

`record(…, start=WarmTrainer)` records one. What runs is the trainer's own entry point with the arguments of
its command line; only the interpreter's start and the imports are spared. Knows nothing of what is trained.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
from collections.abc import Mapping, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO

from dflash.contract.errors import UsageError
from profiler.child import Exit
from profiler.launcher import pr_set_pdeathsig

imported = [
    "dflash.__main__",
    "dflash.session",
    "dflash.faults.injection",
    "transformers.models.qwen3.modeling_qwen3",
]
start_limit_s = 180.0  # of the first, for which everything is imported
_context = get_context("forkserver")


class WarmTrainer:
    """What `profiler.child.Child` is to the recorder; `command` ends with `-m dflash` and its arguments."""

    def __init__(
        self, command: Sequence[str], *, env: Mapping[str, str], output: IO[bytes] | None = None
    ) -> None:
        paths = [str(Path(__file__).resolve().parents[1]), os.environ.get("PYTHONPATH", "")]
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))  # where the first finds its imports
        self._exit: Exit | None = None
        _context.set_forkserver_preload(imported)
        self._pipe, theirs = _context.Pipe()
        arguments = list(command[command.index("dflash") + 1 :])
        log = None if output is None else output.name
        self._process = _context.Process(target=_train, args=(theirs, arguments, dict(env), log))
        self._process.start()
        theirs.close()
        try:
            found = self._pipe.recv() if self._pipe.poll(start_limit_s) else None
        except EOFError:
            found = None
        if found is None:
            self.close()
            raise UsageError("the trainer did not start", where=sys.executable, found="no answer")
        self.pid, self.launcher_pid = found

    def release(self) -> None:
        """Let the trainer begin."""
        self._pipe.send(True)

    def signal(self, number: int) -> None:
        """Send a signal to the trainer, if it still runs."""
        if self._process.is_alive():
            os.kill(self.pid, number)

    def wait(self, timeout_s: float) -> Exit | None:
        """How it ended, or None when it still runs after `timeout_s`."""
        self._process.join(timeout_s)
        code = self._process.exitcode
        if code is not None and self._exit is None:
            cpu_s, peak_rss_bytes = self._usage()
            self._exit = Exit(code=code, cpu_s=cpu_s, peak_rss_bytes=peak_rss_bytes)
        return self._exit

    def close(self) -> None:
        """End it, if it still runs."""
        self._process.kill()
        self._process.join()

    def _usage(self) -> tuple[float | None, int | None]:
        try:
            usage: tuple[float, int] = self._pipe.recv()
        except EOFError:  # killed before it could tell
            return None, None
        return usage


def _train(pipe: Connection, arguments: list[str], env: dict[str, str], log: str | None) -> None:
    """In the forked child: wait at the gate, then be the trainer."""
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL, 0, 0, 0)
    os.environ.clear()
    os.environ.update(env)
    if log is not None:
        file = os.open(log, os.O_WRONLY | os.O_APPEND)
        os.dup2(file, sys.stdout.fileno())
        os.dup2(file, sys.stderr.fileno())
    pipe.send((os.getpid(), os.getppid()))
    pipe.recv()
    from dflash.__main__ import main

    code = main(arguments)
    used = resource.getrusage(resource.RUSAGE_SELF)
    pipe.send((used.ru_utime + used.ru_stime, used.ru_maxrss * 1024))
    sys.exit(code)
