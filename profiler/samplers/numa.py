"""Samples on which NUMA node the run's memory lies. Only where there are several nodes.

The kernel walks page tables for the answer, so it is asked rarely: every half minute, and never for more than
a thousandth of the time. Keys: `node0`, `node1`, …. Knows nothing of GPUs.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from dflash.contract.numa import memory_by_node, read_nodes
from profiler.launcher import descendants
from profiler.samplers.base import Reading, Sampler

cost_share = 0.001


class NumaSampler(Sampler):
    """Everything below `root_pid` in the process tree."""

    name = "numa"
    metrics = ("numa_bytes",)

    def __init__(self, root_pid: int, interval_s: float = 30.0, root: Path = Path("/")) -> None:
        self.interval_s = interval_s
        self._root_pid, self._root = root_pid, root
        self._nodes: tuple[int, ...] = ()
        self._ask_after_s = 0.0

    def open(self) -> str | None:
        self._nodes = tuple(read_nodes(self._root))
        if len(self._nodes) < 2:
            return "this machine has one NUMA node" if self._nodes else "this system does not tell NUMA nodes"
        return None

    def sample(self) -> Iterator[Reading]:
        began_s = time.monotonic()
        if not self._nodes or began_s < self._ask_after_s:
            return
        t_ns = time.monotonic_ns()
        found, reason = self._read()
        self._ask_after_s = began_s + (time.monotonic() - began_s) / cost_share
        for node in self._nodes:
            value = None if found is None else float(found[node])
            yield Reading(t_ns, f"node{node}", "numa_bytes", value, reason)

    def close(self) -> Iterator[Reading]:
        return iter(())

    def _read(self) -> tuple[Counter[int] | None, str | None]:
        """Bytes by node over all processes, or why not."""
        total: Counter[int] = Counter()
        reason: str | None = "the command has no processes yet, or no longer"
        for pid in descendants(self._root_pid):
            try:
                with (self._root / f"proc/{pid}/numa_maps").open(errors="replace") as lines:
                    total += memory_by_node(lines)
                reason = None
            except (FileNotFoundError, ProcessLookupError):
                continue  # ended meanwhile, or a kernel without NUMA
            except PermissionError:
                return None, f"no permission to read /proc/{pid}/numa_maps"
        return (None, reason) if reason else (total, None)
