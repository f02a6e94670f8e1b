"""`python -m dflash …` as processes forked from one that has imported everything, for tests that signal them.

What runs is the entry point with its arguments, in a directory and an environment of its own; only the
interpreter's start and the imports, which take longer than most of these tests, are spared.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing import get_context
from pathlib import Path

from benchmarks.warm_trainer import imported

_context = get_context("forkserver")


class ForkedCommand:
    """One process; what it says goes to the files `out` and `err` of its directory. Use with `with`."""

    def __init__(
        self, folder: Path, arguments: Sequence[str], before: Callable[[], None] | None = None
    ) -> None:
        """`before`: a function of this module, called in the process before it is the command."""
        _context.set_forkserver_preload(imported)
        self.folder = folder
        self._process = _context.Process(target=_be, args=(list(arguments), str(folder), before))

    def __enter__(self) -> ForkedCommand:
        self._process.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()  # nothing happens to one that has ended
        self._process.join()

    @property
    def err(self) -> str:
        """What it has said to people so far."""
        path = self.folder / "err"
        return path.read_text() if path.exists() else ""

    @property
    def out(self) -> str:
        """Its stdout so far."""
        return (self.folder / "out").read_text()

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def wait_for(self, holds: Callable[[], bool], limit_s: float = 120.0) -> None:
        """Return as soon as that holds; AssertionError where the process, or the time, ends before."""
        for _ in range(int(limit_s / 0.02)):
            if holds():
                return
            self._process.join(0.02)
            assert self._process.exitcode is None or holds(), f"it ended first: {self.err}"
        raise AssertionError(f"it did not come to that: {self.err}")

    def end(self, limit_s: float = 120.0) -> int:
        """Its exit code, or minus the signal that ended it."""
        self._process.join(limit_s)
        assert self._process.exitcode is not None, f"it did not end: {self.err}"
        return self._process.exitcode


def loading_stands_still() -> None:
    """A trainer makes the file `loading` while it loads, and goes no further."""
    from dflash import trainer

    def stand_still(*_: object) -> None:
        Path("loading").touch()
        while True:  # a handler does not run while a sleep lasts that began just after its signal
            time.sleep(0.05)

    trainer.set_up_torch = stand_still


def _be(arguments: list[str], folder: str, before: Callable[[], None] | None) -> None:
    """In the forked child: be the command."""
    os.chdir(folder)
    for name, stream in (("out", sys.stdout), ("err", sys.stderr)):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), stream.fileno())
    if before is not None:
        before()
    from dflash.__main__ import main

    sys.exit(main(arguments))
