"""The lock under which Optuna appends to its journal, waited for aloud.

Same file as Optuna's own, so that its tools and ours keep out of each other's way. Ours says who holds it,
so that one left by a dead search is known at once; one that says nothing is waited for. Knows nothing of
studies.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from optuna.storages.journal import JournalFileOpenLock

from autotune.lease import Lease

notice_after_s = 1.0  # Optuna holds it for milliseconds
stale_after_s = 90.0  # unchanged for so long, and nobody says that he holds it: it is a dead one's
longest_sleep_s = 0.25


@contextmanager
def _one_at_a_time(directory: Path) -> Iterator[None]:
    """Nobody else is in here for `directory` meanwhile; as far as its file system has locks."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


class JournalLock(JournalFileOpenLock):
    """`notice` is told when it takes long, and when a dead one's lock is taken away."""

    def __init__(self, journal: Path, notice: Callable[[str], None]) -> None:
        super().__init__(str(journal))
        self._path = Path(self._lock_file)
        self._notice = notice

    def acquire(self) -> bool:
        """Wait until it is ours."""
        began_s = time.monotonic()
        said, sleep_s = False, 0.001
        while not self._try():
            if self._is_dead_ones() and self._take_away():
                self._notice(f"took away {self._path.name}: who held it is no more")
                continue
            if not said and time.monotonic() - began_s >= notice_after_s:
                said = True
                self._notice(
                    f"another process holds {self._path}; waiting for it (nothing is lost meanwhile)"
                )
            time.sleep(sleep_s)
            sleep_s = min(2 * sleep_s, longest_sleep_s)
        if said:
            self._notice(f"{self._path.name} is free again after {time.monotonic() - began_s:.0f} s")
        return True

    def release(self) -> None:
        """Let go of it."""
        self._path.unlink(missing_ok=True)

    def _try(self) -> bool:
        """Whether it is ours now. It is whole as soon as it is there: who is killed leaves his name on it."""
        if self._path.exists():
            return False
        own = self._path.with_name(f"{self._path.name}.{os.getpid()}-{threading.get_ident()}")
        try:
            own.write_text(Lease.own().render(), encoding="utf-8")
            os.link(own, self._path)
        except FileExistsError:
            return False
        except OSError:  # a file system without links
            return self._try_to_create()
        finally:
            own.unlink(missing_ok=True)
        return True

    def _try_to_create(self) -> bool:
        try:
            handle = os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        except FileExistsError:
            return False
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(Lease.own().render())
        return True

    def _take_away(self) -> bool:
        """Whether it was a dead one's still. One waiter at a time: a late one would take a living one's."""
        with _one_at_a_time(self._path.parent):
            found = self._is_dead_ones()
            if found:
                self._path.unlink(missing_ok=True)
        return found

    def _is_dead_ones(self) -> bool:
        """Whether its holder, if it says who that is, is dead; else whether it is too old."""
        with suppress(FileNotFoundError):
            text, changed_s = (
                self._path.read_text(encoding="utf-8", errors="replace"),
                self._path.stat().st_mtime,
            )
            holder = Lease.read(text)
            if holder is not None and holder.is_here:
                return not holder.is_alive
            return time.time() - changed_s > stale_after_s
        return False
