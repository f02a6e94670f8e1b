"""How a run stands, also when nobody was left to write it down. Reads run.json and /proc; writes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dflash.contract.processes import boot_id, is_alive, pid_namespace

_names = {"maker": "process that made the run"}
_roles = ("recorder", "trainer")  # whose death is told: the first that there is


@dataclass(frozen=True, slots=True)
class RunStatus:
    """`status` as in run.json, or "unknown" with the reason."""

    status: str
    reason: str | None


def effective_status(manifest: Mapping[str, Any]) -> RunStatus:
    """What run.json says, but "failed" where it says "running" and its processes are gone.

    Processes can only be looked for where they ran: elsewhere, and after a reboot, such a run is "unknown".
    """
    said, reason = str(manifest.get("status")), manifest.get("reason")
    if said != "running":
        return RunStatus(said, None if reason is None else str(reason))
    where = _elsewhere(manifest)
    if where is not None:
        return RunStatus("unknown", f"it was running when run.json was last written, {where}")
    known = _known(manifest)
    if not known or any(is_alive(pid, _start_of(manifest, role, pid)) for role, pid in known.items()):
        return RunStatus(said, None)
    return RunStatus("failed", f"the {_names.get(role := next(iter(known)), role)} was killed")


def pid_to_signal(manifest: Mapping[str, Any]) -> int | None:
    """Whom SIGINT reaches to stop the run: its recorder, else its trainer; None: nobody is named."""
    return next(iter(_known(manifest).values()), None)


def _known(manifest: Mapping[str, Any]) -> dict[str, int]:
    """Pids by role, the recorder's first; before anybody has said who they are, that of who made the run."""
    pids = _table(manifest, "pids")
    known = {role: pid for role in _roles if isinstance(pid := pids.get(role), int)}
    if known:
        return known
    maker = _table(_table(manifest, "processes"), "maker").get("pid")
    return {"maker": maker} if isinstance(maker, int) else {}


def _elsewhere(manifest: Mapping[str, Any]) -> str | None:
    """Why this is not the place to look for the run's processes; None when it is."""
    theirs, here = _table(manifest, "clock").get("boot_id"), boot_id()
    if theirs != here or here is None:
        return "on another machine, or before this one was started anew"
    who = _table(manifest, "processes")
    spaces = [_table(who, role).get("pid_namespace") for role in (*_roles, "maker")]
    if any(space is not None and space != pid_namespace() for space in spaces):
        return "in another container"
    return None


def _start_of(manifest: Mapping[str, Any], role: str, pid: int) -> int | None:
    who = _table(_table(manifest, "processes"), role)
    start = who.get("start_ticks")
    return start if who.get("pid") == pid and isinstance(start, int) else None


def _table(parent: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = parent.get(key)
    return value if isinstance(value, Mapping) else {}
