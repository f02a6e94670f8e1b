"""The lock of a study: one search writes at a time, and a second one is told who.

The kernel lets go of the lock when its holder dies, however it dies. Beside it the file says who holds it,
for people, and for filesystems on which locks do nothing. Knows nothing of trials.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from autotune.lease import Lease
from dflash.contract.errors import RunError, UsageError


@contextmanager
def study_lock(study_dir: Path) -> Iterator[None]:
    """Hold the study for writing. Raises UsageError with the holder's pid when another search has it."""
    path = study_dir / "lock"
    try:
        study_dir.mkdir(parents=True, exist_ok=True)
        file = path.open("a+", encoding="utf-8")
    except OSError as error:
        raise RunError(f"the study directory cannot be used: {error}", where=str(study_dir)) from None
    with file:
        _take(file, study_dir)
        _write(file, Lease.own().render() + "\n")
        try:
            yield
        finally:
            _write(file, "")


def _take(file: IO[str], study_dir: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise _refusal(study_dir, _read(file)) from None
    except OSError as error:
        raise RunError(
            f"the study directory cannot be locked: {error}",
            where=str(study_dir),
            remedy="put the study on a local disk",
        ) from None
    holder = _read(file)
    if holder is not None and holder.is_alive and holder != Lease.own():
        raise _refusal(study_dir, holder)  # it lives and its lock does not: this filesystem keeps none


def _refusal(study_dir: Path, holder: Lease | None) -> UsageError:
    who = (
        "a search with unknown pid" if holder is None else f"a search with pid {holder.pid} on {holder.host}"
    )
    return UsageError(
        "another search is using this study",
        where=str(study_dir),
        found=who,
        remedy="wait for it, stop it, or use another --study-dir; reading a running study needs no lock",
    )


def _read(file: IO[str]) -> Lease | None:
    file.seek(0)
    return Lease.read(file.read())


def _write(file: IO[str], text: str) -> None:
    file.truncate(0)
    file.write(text)
    file.flush()
