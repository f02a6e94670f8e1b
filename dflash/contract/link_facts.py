"""What was measured of the links between devices and host memory: the form of links.json.

Written by `dflash-profile links`, read by whoever chooses or judges a way for the bytes. Unknown is None,
with the reason beside it. Knows nothing of how it was measured.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Final

schema_version: Final = 1
host: Final = "host"


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkDevice:
    """An end of links: a GPU or a logical device."""

    name: str  # "cuda:0", "logical:0"
    model: str | None
    uuid: str | None
    pci: str | None
    numa_node: int | None
    numa_reason: str | None  # why the node is unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkEdge:
    """One direction between two ends, by one path. `src` or `dst` is "host" on the paths through the host."""

    src: str
    dst: str
    path: str  # peer, pinned, pageable
    peer_access: bool | None = None  # the driver's word, which proves nothing; None on edges with the host
    copy_bytes: int | None = None  # of the copies that gave the speeds
    gb_per_s: float | None = None  # 10^9 bytes a second, nothing else going on
    latency_us: float | None = None  # of a copy of 8 bytes
    both_ways_gb_per_s: float | None = None  # this direction, while the other is in use, too
    all_at_once_gb_per_s: float | None = None  # this direction, while all devices copy in it
    words: int | None = None  # of 8 bytes, checked after the copies
    wrong_words: int | None = None
    buffer_node: int | None = None  # NUMA node of the host memory
    reason: str | None = None  # why this was not measured

    @property
    def correct(self) -> bool | None:
        """Whether everything arrived as it was sent; None when that was not seen."""
        return None if self.wrong_words is None else self.wrong_words == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkFacts:
    """All links of a machine, as this process sees them."""

    measured_utc: str
    emulated: bool  # logical devices: declared speeds, paced
    torch: str
    numa_nodes: tuple[int, ...] | None  # of the machine; None: unknown
    iommu: bool | None
    numactl: bool  # whether that command is installed
    devices: tuple[LinkDevice, ...]
    edges: tuple[LinkEdge, ...]
    findings: tuple[str, ...] = ()  # what a person should know, in sentences
    schema: int = schema_version

    def edge(self, src: str, dst: str, path: str) -> LinkEdge | None:
        """The edge between two ends by a path; None where there is none."""
        return next((e for e in self.edges if (e.src, e.dst, e.path) == (src, dst, path)), None)

    def device(self, name: str) -> LinkDevice:
        """The device of that name."""
        return next(device for device in self.devices if device.name == name)

    def staged_gb_per_s(self, src: str, dst: str) -> float | None:
        """Speed of the way through pinned host memory, down and then up; None unless both are right."""
        ways = (self.edge(src, host, "pinned"), self.edge(host, dst, "pinned"))
        speeds = [way.gb_per_s for way in ways if way is not None and way.correct and way.gb_per_s]
        return 1 / sum(1 / speed for speed in speeds) if len(speeds) == len(ways) else None

    @property
    def corrupt(self) -> tuple[LinkEdge, ...]:
        """Edges over which something arrived wrong."""
        return tuple(edge for edge in self.edges if edge.correct is False)

    def to_json(self) -> dict[str, Any]:
        """Plain values, ready for strict JSON."""
        return dataclasses.asdict(self)
