"""Whose processes hold a GPU's memory: this run's, or somebody else's. Linux only. Knows nothing of NVML."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from profiler.samplers.sensors import Answer, GpuProcess, Unreadable

longest_ancestry = 64  # of a process, before its line of parents is given up


def descends_from(root_pid: int, proc: Path = Path("/proc")) -> Callable[[int], bool]:
    """Tells of a pid whether it is `root_pid`, this process, or a living descendant of `root_pid`."""
    here = os.getpid()

    def is_own(pid: int) -> bool:
        if pid == here:  # itself only: what else it started belongs to other runs
            return True
        for _ in range(longest_ancestry):
            if pid == root_pid:
                return True
            if pid <= 1:
                return False
            try:
                pid = int((proc / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()[1])
            except (OSError, ValueError, IndexError):  # it ended meanwhile
                return False
        return False

    return is_own


def own_and_foreign_bytes(
    processes: Sequence[GpuProcess] | Unreadable,
    used_bytes: Answer,
    is_own: Callable[[int], bool],
) -> tuple[Answer, Answer]:
    """Memory of this run's processes, and the rest of `used_bytes`: foreign load, whoever it is."""
    if isinstance(processes, Unreadable):
        return processes, processes
    own = [process.used_bytes for process in processes if is_own(process.pid)]
    if None in own:
        unknown = Unreadable("the driver does not say how much a process uses", permanent=True)
        return unknown, unknown
    own_bytes = float(sum(used for used in own if used is not None))
    if used_bytes is None or isinstance(used_bytes, Unreadable):
        return own_bytes, used_bytes
    return own_bytes, max(used_bytes - own_bytes, 0.0)
