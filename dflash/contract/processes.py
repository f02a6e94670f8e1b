"""Which process a pid means: pids are used again, so a run also keeps when its processes began, and where.

Linux only; elsewhere nothing is known. Knows nothing of runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

_proc = Path("/proc")


def boot_id() -> str | None:
    """Of the running system; None where it has none."""
    try:
        return (_proc / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None


def pid_namespace() -> str | None:
    """In which the pids that this process sees are valid."""
    try:
        return str((_proc / "self/ns/pid").readlink())
    except OSError:
        return None


def identify(pid: int) -> dict[str, Any]:
    """What tells this process from all others: pid, start in clock ticks since boot, pid namespace."""
    state_start = _state_and_start(pid)
    start = None if state_start is None else state_start[1]
    return {"pid": pid, "start_ticks": start, "pid_namespace": pid_namespace()}


def is_alive(pid: int, start_ticks: int | None) -> bool:
    """Whether the process of this pid and start (None: any start) still runs. A zombie does not."""
    found = _state_and_start(pid)
    return found is not None and found[0] not in "ZX" and start_ticks in (None, found[1])


def _state_and_start(pid: int) -> tuple[str, int] | None:
    try:
        # The program's name stands in brackets and may hold anything, brackets too.
        fields = (_proc / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
        return fields[0].decode(), int(fields[19])
    except (OSError, ValueError, IndexError):
        return None
