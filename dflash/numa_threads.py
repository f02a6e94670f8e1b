"""Runs a piece of work on the CPUs next to a GPU, so that memory it touches first comes from that NUMA node.

Where the system does not tell the node, or its CPUs are not ours to use, the work is run all the same, as it
would have been. Knows nothing of what the work is.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from dflash.contract.numa import node_of_gpu, read_nodes, system


def run_near(pci: str | None, work: Callable[[], object], root: Path = system) -> bool:
    """Run `work` to its end on the CPUs of the node of the GPU at `pci`; whether it was run there.

    On a thread of its own, whose end takes the binding with it. Raises what `work` raises.
    """
    cpus = cpus_near(pci, root) & os.sched_getaffinity(0)
    bound, errors = [False], []

    def run() -> None:
        if cpus:
            with suppress(OSError):  # forbidden here: the work matters more than its place
                os.sched_setaffinity(0, cpus)  # of this thread alone
                bound[0] = True
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - a thread boundary: raised again by the caller
            errors.append(error)

    thread = threading.Thread(target=run, name="numa-touch")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return bound[0]


def cpus_near(pci: str | None, root: Path = system) -> set[int]:
    """The CPUs of a GPU's node; empty where the system does not say, or has one node only."""
    node, _ = node_of_gpu(pci, root)
    nodes = read_nodes(root)
    return parse_cpus(nodes[node]) if len(nodes) > 1 and node in nodes else set()


def parse_cpus(text: str) -> set[int]:
    """What the system writes as "0-3,8"."""
    cpus: set[int] = set()
    for part in text.split(","):
        if part.strip():
            first, _, last = part.partition("-")
            cpus.update(range(int(first), int(last or first) + 1))
    return cpus
