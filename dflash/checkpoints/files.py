"""A checkpoint's files on disk: names, checksums, and how a directory comes to its name whole.

A directory is written under a temporary name (`.step-N.…`), every file and the directory are synced, then it
is renamed. Who writes holds a lock on the directory of checkpoints, which the system takes back from a killed
process: leftovers are removed by whoever gets the lock. Knows nothing of what the files hold.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from dflash.contract.errors import DamagedError

state_name: Final = "state.json"
optimizer_name: Final = "optimizer.safetensors"
damaged_prefix: Final = "damaged."
_leftover: Final = re.compile(r"\.step-\d+\.\d+(\.old)?")


def step_directories(directory: Path) -> list[Path]:
    """All step-N directories, whole or damaged, oldest first."""
    found = [path for path in directory.glob("step-*") if path.name[5:].isdecimal() and path.is_dir()]
    return sorted(found, key=step_of)


def step_of(path: Path) -> int:
    """N of a directory called step-N."""
    return int(path.name.removeprefix("step-"))


def write_whole(directory: Path, steps_done: int, fill: Callable[[Path], None]) -> Path:
    """Let `fill` write into a new directory and give it the name `directory`/step-N once all is on disk.

    Raises what `fill` raises, and OSError; nothing of the new directory is then left. One that has its name
    gives way at the very last.
    """
    directory.mkdir(parents=True, exist_ok=True)
    final = directory / f"step-{steps_done}"
    temporary = directory / f".{final.name}.{os.getpid()}"
    with _sole_writer(directory, wait=True):
        _remove_leftovers(directory)
        try:
            temporary.mkdir()
            fill(temporary)
            _sync(temporary)
            if final.exists():
                _discard(final)
            temporary.rename(final)
            _sync_directory(directory)
        finally:
            shutil.rmtree(
                temporary, ignore_errors=True
            )  # there only after a failure, when its room is needed
    return final


def remove_older(directory: Path, keep: int) -> None:
    """Remove all but the newest `keep` checkpoints. One that cannot be removed stays."""
    for old in step_directories(directory)[:-keep]:
        with suppress(OSError):
            _discard(old)


def _discard(path: Path) -> None:
    """Remove a checkpoint, such that a kill on the way leaves no half of it under its name."""
    leftover = path.with_name(f".{path.name}.{os.getpid()}.old")
    path.rename(leftover)
    shutil.rmtree(leftover, ignore_errors=True)


def remove_leftovers(directory: Path) -> list[str]:
    """Remove what killed writers left, unless somebody writes there now; the names removed."""
    if not directory.is_dir():
        return []
    with _sole_writer(directory, wait=False) as alone:
        return _remove_leftovers(directory) if alone else []


def _remove_leftovers(directory: Path) -> list[str]:
    found = sorted(path for path in directory.glob(".step-*") if _leftover.fullmatch(path.name))
    for leftover in found:
        shutil.rmtree(leftover, ignore_errors=True)
    return [leftover.name for leftover in found if not leftover.exists()]


@contextmanager
def _sole_writer(directory: Path, *, wait: bool) -> Iterator[bool]:
    """Whether nobody else writes into `directory`, and nobody will meanwhile. File systems may lack locks."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            alone = True
        except OSError:
            alone = False
        yield alone
    finally:
        os.close(descriptor)


def set_aside(path: Path) -> Path:
    """Rename a damaged checkpoint, so that it is neither found nor counted and can still be looked at."""
    aside = path.with_name(damaged_prefix + path.name)
    shutil.rmtree(aside, ignore_errors=True)
    return path.rename(aside)


def facts_of_files(directory: Path) -> dict[str, dict[str, object]]:
    """{name: bytes and sha256} of all files of a directory."""
    return {
        path.name: {"bytes": path.stat().st_size, "sha256": _digest(path)}
        for path in sorted(directory.iterdir())
    }


def verify_files(directory: Path, facts: Mapping[str, Mapping[str, object]]) -> None:
    """Raises DamagedError, naming the first file that is not as it was written."""
    for name, fact in facts.items():
        _verify(directory / name, fact)


def _verify(path: Path, fact: Mapping[str, object]) -> None:
    try:
        size = path.stat().st_size
        if size != fact["bytes"]:
            found = f"{size} bytes" if size else "an empty file"
        elif (digest := _digest(path)) != fact["sha256"]:
            found = f"{size} bytes, sha256 {digest[:12]}…"
        else:
            return
    except FileNotFoundError:
        found = "missing"
    except OSError as error:
        found = f"unreadable: {error.strerror}"
    raise damage(path, found, f"{fact['bytes']} bytes, sha256 {str(fact['sha256'])[:12]}…")


def damage(path: Path, found: str, expected: str) -> DamagedError:
    """What to raise for a file that is not as it was written."""
    return DamagedError(
        "the checkpoint is damaged",
        where=str(path),
        found=found,
        expected=expected,
        remedy="name the run or its checkpoints directory, so that an older one is taken, or an older step-N",
    )


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(directory: Path) -> None:
    for path in directory.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
    _sync_directory(directory)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
