"""Processes that a dead search may have left behind: found by the marks they carry, ended, seen to be gone.

Every process of a trial inherits DFLASH_RUN_DIR, which names the trial's own run directory. Beside that the
run directory says which process its trainer is: pid, start and boot. Either tells them from any other
process, also when their parents are gone and pids have been used again; a name never does.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from autotune.lease import Lease
from dflash.contract.errors import DFlashError
from dflash.contract.processes import pid_namespace
from dflash.contract.rundir import environment_variable

end_limit_s = 10.0


def end_leftovers(trials_dir: Path) -> tuple[int, ...]:
    """Kill what still runs for a trial under `trials_dir`; returns the pids that were ended.

    Raises DFlashError naming the pids that would not go: they would spoil every measurement.
    """
    marked = [process for process in _processes() if _belongs(process, trials_dir)]
    known = {process.pid for process in marked}
    found = marked + [process for process in _named_trainers(trials_dir) if process.pid not in known]
    for process in found:
        try:
            process.kill()  # psutil checks first that the pid is still the same process
        except psutil.NoSuchProcess:
            pass
        except psutil.AccessDenied:
            break  # said below
    deadline = time.monotonic() + end_limit_s
    while alive := [process.pid for process in found if _runs(process)]:
        if time.monotonic() > deadline:
            raise DFlashError(
                "processes of an earlier search are still running and cannot be ended",
                where=str(trials_dir),
                found=f"pids {', '.join(map(str, alive))}",
                remedy="end them, then search again",
            )
        time.sleep(0.02)
    return tuple(process.pid for process in found)


def _processes() -> Iterator[psutil.Process]:
    """All there are now. `psutil.process_iter` keeps those of earlier looks, whose pids may be used again."""
    for pid in psutil.pids():
        with suppress(psutil.NoSuchProcess):
            yield psutil.Process(pid)


def _named_trainers(trials_dir: Path) -> list[psutil.Process]:
    """Trainers of runs that did not end properly, where the very process that was named still lives."""
    named = []
    for path in trials_dir.glob("*/*/run.json"):
        lease = _read_lease(path)
        if lease is not None and lease.is_alive and lease.pid != os.getpid():
            with suppress(psutil.NoSuchProcess):
                named.append(psutil.Process(lease.pid))
    return named


def _read_lease(path: Path) -> Lease | None:
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        trainer = manifest["processes"]["trainer"]
        if manifest["status"] != "running" or trainer["start_ticks"] is None:
            return None
        if trainer["pid_namespace"] != pid_namespace():
            return None
        return Lease(
            pid=int(trainer["pid"]),
            start_ticks=int(trainer["start_ticks"]),
            boot_id=manifest["clock"]["boot_id"],
            host="",
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None  # no run of ours, or one that had not begun


def _belongs(process: psutil.Process, trials_dir: Path) -> bool:
    if process.pid == os.getpid():
        return False
    try:
        marked = process.environ().get(environment_variable)
    except (psutil.Error, OSError):  # another user's, or gone meanwhile
        return False
    return bool(marked) and Path(str(marked)).is_relative_to(trials_dir)


def _runs(process: psutil.Process) -> bool:
    """False for one that is gone, or dead and merely not yet reaped."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
