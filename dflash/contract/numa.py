"""NUMA as Linux tells it: the machine's nodes, which node a GPU hangs on, and where memory lies.

What the system does not say is unknown, never node 0. `root` is where /sys and /proc are found. Knows nothing
of links or runs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Final

system: Final = Path("/")
no_address: Final = "the PCI address is unknown"
_shared_memory = re.compile(r"file=(/dev/zero|/dev/shm/|/memfd:|/SYSV)")  # anonymous in all but name
_pci_address = re.compile(r"([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])")


def read_nodes(root: Path = system) -> dict[int, str]:
    """{node: its CPUs, as "0-63,128-191"} in order; empty where the system does not say."""
    nodes = {}
    for directory in (root / "sys/devices/system/node").glob("node[0-9]*"):
        try:
            nodes[int(directory.name.removeprefix("node"))] = (directory / "cpulist").read_text().strip()
        except (OSError, ValueError):
            continue
    return dict(sorted(nodes.items()))


def node_of_gpu(pci: str | None, root: Path = system) -> tuple[int | None, str | None]:
    """The node a GPU is attached to, or None and why.

    `pci`: its address as NVML ("00000000:18:00.0"), sysfs ("0000:18:00.0") or torch spell it.
    """
    if pci is None:
        return None, no_address
    match = _pci_address.fullmatch(pci)
    if match is None:
        return None, f"{pci!r} is no PCI address"
    address = f"{match[1][-4:]}:{match[2]}".lower()
    try:
        node = int((root / "sys/bus/pci/devices" / address / "numa_node").read_text())
    except (OSError, ValueError):
        return None, "the system does not say (no numa_node in /sys/bus/pci)"
    return (node, None) if node >= 0 else (None, "the system says -1: it does not know")


def node_of_memory(address: int, root: Path = system) -> int | None:
    """The node that holds most pages of this process's mapping at `address`; None: it is not said."""
    try:
        lines = (root / "proc/self/numa_maps").read_text().splitlines()
    except OSError:
        return None
    starts = [(int(line.partition(" ")[0], 16), line) for line in lines if line[:1].isalnum()]
    before = [entry for entry in starts if entry[0] <= address]
    if not before:
        return None
    pages = _pages(max(before)[1])
    return max(pages, key=lambda node: pages[node], default=None)


def memory_by_node(numa_maps: Iterable[str]) -> Counter[int]:
    """Bytes of anonymous and shared memory on each node, from the lines of /proc/PID/numa_maps."""
    found: Counter[int] = Counter()
    for line in numa_maps:
        if "file=" in line and not _shared_memory.search(line):
            continue  # pages of files, which the kernel can drop
        page = re.search(r"kernelpagesize_kB=(\d+)", line)
        if page is not None:
            for node, pages in _pages(line).items():
                found[node] += pages * int(page[1]) * 1024
    return found


def _pages(line: str) -> dict[int, int]:
    """{node: pages} of one mapping."""
    return {int(node): int(count) for node, count in re.findall(r"\bN(\d+)=(\d+)", line)}
