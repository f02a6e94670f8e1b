"""Finds the run that a person means: by its directory, by the pid of its trainer or recorder, or the newest.

Reads /proc and run.json; touches no process. Knows nothing of what a run holds.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from dflash.contract.errors import RunError, UsageError
from dflash.contract.processes import boot_id, is_alive
from dflash.contract.rundir import RunDir, environment_variable
from profiler.launcher import descendants

default_base = Path("runs")


def find_run(target: str | None) -> Path:
    """The run directory behind `target`: a directory, a pid, or None for the newest one in runs/.

    Raises UsageError (no such process, not allowed to look, no run in it, several) and RunError.
    """
    if target is None:
        return _newest_run(default_base)
    path = Path(target)
    if path.exists() or not target.isdecimal():
        RunDir(path).manifest()
        return path
    return run_of_process(int(target))


def run_of_process(pid: int) -> Path:
    """The run that process `pid`, or one below it, records or trains."""
    if not Path(f"/proc/{pid}").exists():
        raise UsageError(
            "there is no such process",
            where=f"pid {pid}",
            remedy="name the run's directory; the recorder prints it, and run.json in it has the pids",
        )
    own = _run_in(pid, required=True)
    found = [own] if own is not None else list(dict.fromkeys(_runs_below(pid)))
    if not found:
        raise UsageError(
            "this process belongs to no run",
            where=f"pid {pid}",
            found=_command_line(pid) or "a process without a command line",
            expected="the pid of a trainer, of `dflash-profile record`, or of what started one of them",
        )
    if len(found) > 1:
        raise UsageError(
            "this process has several runs below it",
            where=f"pid {pid}",
            found=", ".join(map(str, found)),
            remedy="name one of these directories",
        )
    RunDir(found[0]).manifest()
    return found[0]


def is_finishing(manifest: Mapping[str, Any]) -> bool:
    """Whether the command has said how it ended, and its recorder still has the last word to write."""
    pids = manifest.get("pids")
    recorder = pids.get("recorder") if isinstance(pids, Mapping) else None
    ended = manifest.get("status") != "running" and "usage" not in manifest
    return ended and isinstance(recorder, int) and _is_here(manifest) and is_alive(recorder, None)


def _is_here(manifest: Mapping[str, Any]) -> bool:
    clock = manifest.get("clock")
    return isinstance(clock, Mapping) and clock.get("boot_id") == boot_id() is not None


def _newest_run(base: Path) -> Path:
    """The run in `base` that started last; those that still run go first."""
    runs = []
    for path in base.glob("*/run.json"):
        try:
            manifest = RunDir(path.parent).manifest()
        except RunError:
            continue
        clock = manifest.get("clock")
        started_ns = clock.get("utc_ns") if isinstance(clock, dict) else None
        runs.append((manifest.get("status") == "running", started_ns or 0, path.parent))
    if not runs:
        raise RunError(
            "there is no run to watch",
            where=str(base.absolute()),
            remedy="name a run's directory or the pid of a trainer, or start one: "
            "`dflash-profile live -- COMMAND`",
        )
    return max(runs)[2]


def _runs_below(pid: int) -> Iterator[Path]:
    for below in descendants(pid):
        if (run := _run_in(below, required=False)) is not None:
            yield run


def _run_in(pid: int, *, required: bool) -> Path | None:
    """The run that a process was told of: in its environment by the recorder, else on its command line."""
    try:
        entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        folder = Path(f"/proc/{pid}/cwd").readlink()
    except PermissionError:
        if not required:
            return None
        raise UsageError(
            "this process may not be looked at",
            where=f"pid {pid}",
            found="it runs as another user",
            remedy="name the run's directory, or look as that user",
        ) from None
    except OSError:
        return None  # it has ended
    name = environment_variable.encode() + b"="
    told = [os.fsdecode(entry[len(name) :]) for entry in entries if entry.startswith(name)]
    for option, value in pairwise(words):
        if option == b"--":
            break
        if option == b"--run-dir":
            told.append(os.fsdecode(value))
        elif option.startswith(b"--run-dir="):
            told.append(os.fsdecode(option.partition(b"=")[2]))
    return folder / told[0] if told else None


def _command_line(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    except OSError:
        return ""
    return " ".join(word.decode(errors="replace") for word in words)[:200]
