"""Which way hidden states take from each device to each other, how fast each way was, and which was refused.

From `transport_edges` in run.json (transport.path=auto), which may be a stranger's: what has another form is
left out. Knows nothing of how a way is chosen.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pandas as pd

from profiler.run import Run
from profiler.timeline import Timeline
from reports import text

_host: Final = ("host", "cpu")
_arrived_wrong: Final = "arrived wrong"  # in the reason of a way that is refused for it


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteRow:
    """One pair of devices, in words."""

    src: str
    dst: str
    path: str
    peer: str  # speed of the probe before the run
    pinned: str
    seen: str  # what copies on the chosen way made in the measured time
    why: str
    refused: bool  # data arrived wrong on the other way


def list_routes(run: Run, timeline: Timeline) -> tuple[RouteRow, ...]:
    """A row for each pair; none where the run chose no ways."""
    roles = _roles(run)
    return tuple(_row(edge, roles, timeline.copies) for edge in _edges(run))


def _edges(run: Run) -> Iterator[Mapping[str, Any]]:
    edges = run.manifest.get("transport_edges")
    for edge in edges if isinstance(edges, list) else []:
        if isinstance(edge, Mapping) and all(isinstance(edge.get(k), str) for k in ("src", "dst", "path")):
            yield edge


def _roles(run: Run) -> dict[str, str]:
    """Device -> what works on it: `target 0, drafter 0`."""
    devices = run.manifest.get("devices")
    found: dict[str, list[str]] = {}
    for device in devices if isinstance(devices, list) else []:
        if isinstance(device, Mapping) and isinstance(device.get("name"), str) and device.get("role"):
            found.setdefault(device["name"], []).append(f"{device['role']} {device.get('index')}")
    return {name: ", ".join(roles) for name, roles in found.items()}


def _row(edge: Mapping[str, Any], roles: Mapping[str, str], copies: pd.DataFrame) -> RouteRow:
    src, dst, path, why = edge["src"], edge["dst"], edge["path"], str(edge.get("why") or "")
    within = path == "within"
    return RouteRow(
        src=_named(src, roles),
        dst=_named(dst, roles),
        path=path,
        peer="–" if within else _speed(edge.get("peer_gb_per_s"), "not measured"),
        pinned="–" if within else _speed(edge.get("pinned_gb_per_s"), "not measured"),
        seen="–" if within else _seen(src, dst, path, copies),
        why=why,
        refused=_arrived_wrong in why,
    )


def _named(device: str, roles: Mapping[str, str]) -> str:
    return f"{roles[device]} ({device})" if device in roles else device


def _seen(src: str, dst: str, path: str, copies: pd.DataFrame) -> str:
    """The speed of the copies of the run, down and up apart where they go through the host."""
    mine = copies[copies["path"] == path]
    if path == "pinned":
        down = _speed(_mean(mine[(mine["src"] == src) & mine["dst"].isin(_host)]))
        up = _speed(_mean(mine[mine["src"].isin(_host) & (mine["dst"] == dst)]))
        if "n/a" not in (down, up):
            return f"down {down}, up {up}"
    return _speed(_mean(mine[(mine["src"] == src) & (mine["dst"] == dst)]), "no such copies were timed")


def _mean(copies: pd.DataFrame) -> float | None:
    seconds, size = float(copies["seconds"].sum()), float(copies["bytes"].sum())
    return size / 1e9 / seconds if seconds > 0 and size > 0 else None


def _speed(gb_per_s: object, reason: str | None = None) -> str:
    known = isinstance(gb_per_s, int | float) and not isinstance(gb_per_s, bool) and math.isfinite(gb_per_s)
    return f"{text.significant(float(gb_per_s))}{text.nbsp}GB/s" if known else text.missing(reason)  # type: ignore[arg-type]
