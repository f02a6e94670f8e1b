"""Measures every link of the machine: each pair of devices, each path through the host, alone and together.

Everything runs on one thread, and peer access is switched on by the first copies, one pair after the other:
that races with other threads' allocations when it is left to a running pipeline. A path that cannot be
measured gets the reason, and the others are measured all the same. Knows nothing of who reads this.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import combinations
from math import inf
from pathlib import Path
from typing import Any

import torch

from dflash.contract.config import TrainConfig
from dflash.contract.errors import DFlashError
from dflash.contract.link_facts import LinkDevice, LinkEdge, LinkFacts, host
from dflash.contract.numa import node_of_gpu, node_of_memory, read_nodes, system
from dflash.contract.rundir import utc_now
from dflash.crossings import Crossing, word_bytes
from dflash.cuda import CudaDevice
from dflash.devices import Device, wants_cuda
from dflash.link_ends import CudaEnds, Ends, LogicalEnds
from dflash.link_findings import judge_links
from dflash.link_timing import measure_latency, measure_rates

Way = tuple[str, str, str]  # src, dst, path
host_paths = ("pinned", "pageable")


def measure_links(
    config: TrainConfig, copy_bytes: int, ways: Sequence[Way] = (), limit_s: float = inf
) -> LinkFacts:
    """Measure all visible GPUs, or the logical devices of the split, with copies of at most that size.

    `ways`: only these, each alone, and as far as `limit_s` goes. Buffers take four times `copy_bytes`. Raises
    DeviceError when there must be a GPU and there is none.
    """
    copy_bytes = copy_bytes // word_bytes * word_bytes
    ends: Ends
    ends = (
        CudaEnds([CudaDevice(index) for index in range(torch.cuda.device_count())], copy_bytes)
        if wants_cuda(config)
        else LogicalEnds(config.device_count, config.devices)
    )
    try:
        probe = LinkProbe(ends, copy_bytes)
        return probe.measure_only(ways, limit_s=limit_s) if ways else probe.measure()
    finally:
        ends.close()


class LinkProbe:
    """One measurement. `root` is where /sys and /proc are found."""

    def __init__(self, ends: Ends, copy_bytes: int, root: Path = system) -> None:
        self._ends, self._copy_bytes, self._root = ends, copy_bytes, root
        self._rows: dict[Way, dict[str, Any]] = {}

    def measure(self) -> LinkFacts:
        """Everything, in an order in which no two large sets of buffers exist at once."""
        names = [device.name for device in self._ends.devices]
        for a, b in combinations(names, 2):
            self._measure_both_ways((a, b, "peer"), (b, a, "peer"))
        for path in host_paths:
            for name in names:
                self._measure_both_ways((name, host, path), (host, name, path))
            if path == "pinned" and len(names) > 1:
                self._measure_all_at_once([(name, host, path) for name in names])
                self._measure_all_at_once([(host, name, path) for name in names])
        return self._facts()

    def measure_between(self, pairs: Iterable[tuple[str, str]]) -> LinkFacts:
        """Only what joins these pairs of devices: peer copies both ways, and pinned ones of each device."""
        joined = list(dict.fromkeys(tuple(sorted(pair)) for pair in pairs))
        for a, b in joined:
            self._measure_both_ways((a, b, "peer"), (b, a, "peer"))
        for name in dict.fromkeys(name for pair in joined for name in pair):
            self._measure_both_ways((name, host, "pinned"), (host, name, "pinned"))
        return self._facts()

    def measure_only(
        self,
        ways: Iterable[Way],
        *,
        limit_s: float = inf,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> LinkFacts:
        """Each of these directions alone, in that order, as far as the time goes."""
        began_s, names = clock_s(), {host, *(device.name for device in self._ends.devices)}
        for way in ways:
            if clock_s() - began_s >= limit_s:
                self._rows[way] = {"reason": f"not measured: {limit_s:g} s were over"}
            elif missing := ", ".join(sorted(set(way[:2]) - names)):
                self._rows[way] = {"reason": f"there is no {missing} here"}
            else:
                self._measure_alone(way)
        return self._facts()

    def _measure_alone(self, way: Way) -> None:
        copy_bytes = self._ends.copy_bytes(way[2], self._copy_bytes)
        self._rows[way] = {"peer_access": self._ends.peer_access(*way[:2]), "copy_bytes": copy_bytes}
        with self._reasons([way]):
            crossing = self._ends.open(*way, copy_bytes)
            self._note([way], "gb_per_s", lambda: measure_rates([crossing]))
            self._note_wrong([way], [crossing])
            self._rows[way]["buffer_node"] = self._node_of_buffer(way)

    def _measure_both_ways(self, *ways: Way) -> None:
        """Each direction alone, then (unless the host must wait for its copies) both at once."""
        copy_bytes = self._ends.copy_bytes(ways[0][2], self._copy_bytes)
        for way in ways:
            self._rows[way] = {"peer_access": self._ends.peer_access(*way[:2]), "copy_bytes": copy_bytes}
        with self._reasons(ways):
            crossings = [self._ends.open(*way, copy_bytes) for way in ways]
            self._note(ways, "gb_per_s", lambda: [measure_rates([crossing])[0] for crossing in crossings])
            self._note_wrong(ways, crossings)
            if ways[0][2] != "pageable":
                self._note(ways, "both_ways_gb_per_s", lambda: measure_rates(crossings))
                self._note_wrong(ways, crossings)
            for way in ways:
                self._rows[way]["buffer_node"] = self._node_of_buffer(way)
        with self._reasons(ways):
            small = [self._ends.open(*way, word_bytes) for way in ways]
            self._note(ways, "latency_us", lambda: [measure_latency(crossing) for crossing in small])

    def _measure_all_at_once(self, ways: Sequence[Way]) -> None:
        """All in one direction, in slots of the memory that one had alone."""
        most = self._copy_bytes // len(ways) // word_bytes * word_bytes
        copy_bytes = self._ends.copy_bytes(ways[0][2], most)
        with self._reasons(ways):
            crossings = [self._ends.open(*way, copy_bytes, slot=slot) for slot, way in enumerate(ways)]
            self._note(ways, "all_at_once_gb_per_s", lambda: measure_rates(crossings))
            self._note_wrong(ways, crossings)

    def _note(self, ways: Sequence[Way], column: str, measure: Callable[[], list[float]]) -> None:
        for way, value in zip(ways, measure(), strict=True):
            self._rows[way][column] = value

    def _note_wrong(self, ways: Sequence[Way], crossings: Sequence[Crossing]) -> None:
        """Add what has arrived since the last count, right or wrong."""
        for way, crossing in zip(ways, crossings, strict=True):
            row = self._rows[way]
            row["words"] = row.get("words", 0) + crossing.copy_bytes // word_bytes
            row["wrong_words"] = row.get("wrong_words", 0) + crossing.wrong_words()

    @contextmanager
    def _reasons(self, ways: Sequence[Way]) -> Iterator[None]:
        """What fails inside, say for want of memory, becomes the reason of the ways and ends nothing."""
        try:
            yield
        except (RuntimeError, DFlashError) as error:
            first_line = str(error).strip().partition("\n")[0]
            for way in ways:
                self._rows[way].setdefault("reason", f"{type(error).__name__}: {first_line}")

    def _node_of_buffer(self, way: Way) -> int | None:
        address = self._ends.buffer_address(way[2]) if host in way else None
        return None if address is None else node_of_memory(address, self._root)

    def _facts(self) -> LinkFacts:
        facts = LinkFacts(
            measured_utc=utc_now(),
            emulated=self._ends.emulated,
            torch=str(torch.__version__),
            numa_nodes=tuple(read_nodes(self._root)) or None,
            iommu=iommu_is_on(self._root),
            numactl=shutil.which("numactl") is not None,
            devices=tuple(map(self._describe, self._ends.devices)),
            edges=tuple(LinkEdge(src=s, dst=d, path=p, **row) for (s, d, p), row in self._rows.items()),
        )
        return judge_links(facts)

    def _describe(self, device: Device) -> LinkDevice:
        known = device.facts()
        node, reason = (
            (None, "a logical device") if device.emulated else node_of_gpu(known["pci"], self._root)
        )
        return LinkDevice(
            name=device.name,
            model=known["model"],
            uuid=known["uuid"],
            pci=known["pci"],
            numa_node=node,
            numa_reason=reason,
        )


def iommu_is_on(root: Path = system) -> bool | None:
    """Whether devices sit in IOMMU groups, which can spoil copies between GPUs; None: it is not said."""
    try:
        return any((root / "sys/kernel/iommu_groups").iterdir())
    except OSError:
        return None
