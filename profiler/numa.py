"""NUMA: the machine's nodes, which node a GPU hangs on, and where a process's memory lies.

Linux only; elsewhere there is one node as far as anybody can tell. Knows nothing of runs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

_shared_memory = re.compile(r"file=(/dev/zero|/dev/shm/|/memfd:|/SYSV)")  # anonymous in all but name


def read_nodes(root: Path = Path("/")) -> dict[int, str]:
    """{node: its CPUs, as "0-63,128-191"}; empty where the system does not say."""
    nodes = {}
    for directory in sorted((root / "sys/devices/system/node").glob("node[0-9]*")):
        try:
            nodes[int(directory.name.removeprefix("node"))] = (directory / "cpulist").read_text().strip()
        except (OSError, ValueError):
            continue
    return nodes


def gpu_node(pci_bus_id: str | None, root: Path = Path("/")) -> int | None:
    """The node of a GPU by its PCI address, as NVML ("00000000:18:00.0") or sysfs spells it, or None."""
    match = re.fullmatch(r"([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])", pci_bus_id or "")
    if match is None:
        return None
    address = f"{match[1][-4:]}:{match[2]}".lower()
    try:
        node = int((root / "sys/bus/pci/devices" / address / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None  # -1: the firmware does not say


def memory_by_node(numa_maps: Iterable[str]) -> Counter[int]:
    """Bytes of anonymous and shared memory on each node, from the lines of /proc/PID/numa_maps."""
    found: Counter[int] = Counter()
    for line in numa_maps:
        if "file=" in line and not _shared_memory.search(line):
            continue  # pages of files, which the kernel can drop
        page = re.search(r"kernelpagesize_kB=(\d+)", line)
        if page is not None:
            for node, pages in re.findall(r"\bN(\d+)=(\d+)", line):
                found[int(node)] += int(pages) * int(page[1]) * 1024
    return found
