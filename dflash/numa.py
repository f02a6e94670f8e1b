"""Where memory and GPUs sit on a machine with several sockets, as Linux tells it. None: it does not tell.

Knows nothing of links.
"""

from __future__ import annotations

import re
from pathlib import Path

system = Path("/")


def machine_nodes(root: Path = system) -> tuple[int, ...] | None:
    """The NUMA nodes of the machine."""
    found = [
        int(entry.name[4:])
        for entry in (root / "sys/devices/system/node").glob("node*")
        if entry.name[4:].isdecimal()
    ]
    return tuple(sorted(found)) or None


def node_of_gpu(pci: str | None, root: Path = system) -> tuple[int | None, str | None]:
    """The node a GPU is attached to, or None and why. `pci`: domain:bus:device.function, as torch has it."""
    if pci is None:
        return None, "the PCI address is unknown"
    domain, _, rest = pci.lower().partition(":")
    path = root / "sys/bus/pci/devices" / f"{int(domain, 16):04x}:{rest}" / "numa_node"
    try:
        node = int(path.read_text())
    except (OSError, ValueError):
        return None, "the system does not say (no numa_node in /sys/bus/pci)"
    return (node, None) if node >= 0 else (None, "the system says -1: it does not know")


def node_of_memory(address: int, root: Path = system) -> int | None:
    """The node that holds most pages of this process's mapping at `address`."""
    try:
        lines = (root / "proc/self/numa_maps").read_text().splitlines()
    except OSError:
        return None
    starts = [(int(line.partition(" ")[0], 16), line) for line in lines if line[:1].isalnum()]
    before = [entry for entry in starts if entry[0] <= address]
    if not before:
        return None
    pages = {int(n): int(count) for n, count in re.findall(r"\bN(\d+)=(\d+)", max(before)[1])}
    return max(pages, key=lambda node: pages[node], default=None)


def iommu_is_on(root: Path = system) -> bool | None:
    """Whether devices sit in IOMMU groups, which can spoil copies between GPUs."""
    try:
        return any((root / "sys/kernel/iommu_groups").iterdir())
    except OSError:
        return None
