"""On which devices the roles of a run are, and what devices that targets and drafters share allow.

The CPU is no such device: its cores work side by side. Knows nothing of single spans.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from profiler.timeline import Timeline

_idle_kinds: Final = ("wait", "unaccounted", "gil_wait")


@dataclass(frozen=True, slots=True)
class DevicePlaces:
    """How many devices have targets only, drafters only, or both."""

    targets: int
    drafters: int
    both: int

    @property
    def shared(self) -> bool:
        """Whether some device does one role's work while the other's waits."""
        return self.both > 0

    @property
    def all_shared(self) -> bool:
        """Whether both roles have the same devices: what either is spared, the other gets."""
        return self.shared and not (self.targets or self.drafters)

    @property
    def partly_shared(self) -> bool:
        """Whether some devices have both roles, and others one."""
        return self.shared and not self.all_shared

    def allowed(self, target: float, drafter: float) -> float:
        """Tokens/s that shared devices allow, from what one device's time is worth to each role, in tokens/s.

        All tokens pass both roles: the devices of one must bear its work, and all devices the work of both.
        """
        devices = self.targets + self.drafters + self.both
        return min(
            (self.targets + self.both) * target,
            (self.drafters + self.both) * drafter,
            devices / (1 / target + 1 / drafter),
        )


@lru_cache(maxsize=8)  # every rule asks for the same; a timeline does not change
def places_of(timeline: Timeline) -> DevicePlaces:
    """The places of the roles that left spans."""
    targets, drafters = (_devices_of(timeline, stage) for stage in ("target", "drafter"))
    return DevicePlaces(len(targets - drafters), len(drafters - targets), len(targets & drafters))


def idlest_device(timeline: Timeline) -> tuple[str, float] | None:
    """The device of a role that was at work for the least part of the range, and that part; 1 at most."""
    lo_ns, hi_ns = timeline.range_ns
    frame = timeline.devices[timeline.devices["device"] != "cpu"]
    if not len(frame) or hi_ns <= lo_ns:
        return None
    works = frame.assign(ns=frame["ns"].where(~frame["kind"].isin(_idle_kinds), 0))
    totals = works.groupby("device", observed=True)["ns"].sum()
    device = str(totals.idxmin())
    return device, min(float(totals.min()) / (hi_ns - lo_ns), 1.0)


def _devices_of(timeline: Timeline, stage: str) -> set[str]:
    frame = timeline.devices[(timeline.devices["device"] != "cpu") & (timeline.devices["stage"] == stage)]
    return set(frame["device"])
