"""Processes that a dead search may have left behind: found by the mark they carry, ended, seen to be gone.

Every process of a trial inherits DFLASH_RUN_DIR, which names the trial's own run directory. That tells
them from any other process, also when their parents are gone and pids have been used again.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import psutil

from dflash.contract.errors import DFlashError
from dflash.contract.rundir import environment_variable

end_limit_s = 10.0


def end_leftovers(trials_dir: Path) -> tuple[int, ...]:
    """Kill what still runs for a trial under `trials_dir`; returns the pids that were ended.

    Raises DFlashError naming the pids that would not go: they would spoil every measurement.
    """
    found = [process for process in psutil.process_iter() if _belongs(process, trials_dir)]
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
