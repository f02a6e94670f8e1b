"""Every edge is measured, alone and together; what fails has its reason; memory stays within its limit."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch

from dflash.contract.config import load_config
from dflash.contract.errors import DeviceError
from dflash.contract.link_facts import LinkFacts, host
from dflash.contract.sections import DevicesConfig
from dflash.crossings import Crossing, LogicalCrossing
from dflash.devices import LogicalDevice
from dflash.link_ends import HostMemory, LogicalEnds, logical_copy_s
from dflash.link_probe import LinkProbe, iommu_is_on, measure_links
from dflash.links import Link
from profiler.records import decode


class OwnTime:
    """A clock that only sleeping moves, so that this machine's load takes no time."""

    def __init__(self) -> None:
        self.now_ns = 0

    def read_ns(self) -> int:
        return self.now_ns

    def sleep(self, seconds: float) -> None:
        self.now_ns += round(seconds * 1e9)


def paced_link(name: str, gigabytes_per_s: float) -> Link:
    own = OwnTime()
    return Link(name, gigabytes_per_s=gigabytes_per_s, latency_us=40.0, clock_ns=own.read_ns, sleep=own.sleep)


def test_logical_links_have_their_declared_speeds_in_every_edge() -> None:
    config = DevicesConfig(
        link_gigabytes_per_s=0.1, pinned_gigabytes_per_s=0.01, pageable_gigabytes_per_s=0.001
    )
    ends = LogicalEnds(2, config, paced_link)
    try:
        facts = LinkProbe(ends, 400_000).measure()
    finally:
        ends.close()
    assert facts.emulated
    names = [device.name for device in facts.devices]
    assert names == ["logical:0", "logical:1"]
    ways = {(e.src, e.dst, e.path) for e in facts.edges}
    assert ways == {(a, b, "peer") for a in names for b in names if a != b} | {
        way for n in names for p in ("pinned", "pageable") for way in ((n, host, p), (host, n, p))
    }
    declared = {"peer": 0.1, "pinned": 0.01, "pageable": 0.001}
    for edge in facts.edges:
        assert edge.reason is None
        assert edge.correct is True
        assert edge.latency_us == pytest.approx(40, abs=10)  # and the time of a word
        assert (edge.both_ways_gb_per_s is None) == (edge.path == "pageable")
        assert (edge.all_at_once_gb_per_s is None) == (edge.path != "pinned")

        assert edge.gb_per_s == pytest.approx(declared[edge.path], rel=0.02)
    assert decode(LinkFacts, facts.to_json()) == facts


def test_one_device_has_only_its_links_to_the_host() -> None:
    facts = LinkProbe(LogicalEnds(1, DevicesConfig(pageable_gigabytes_per_s=10)), 80_000).measure()
    assert {edge.path for edge in facts.edges} == {"pinned", "pageable"}
    assert all(edge.all_at_once_gb_per_s is None for edge in facts.edges)


class FaultyEnds(LogicalEnds):
    """Logical ends of which some edges corrupt, and some cannot be opened."""

    def __init__(self, count: int, *, corrupt: tuple[str, str], broken: tuple[str, str]) -> None:
        super().__init__(count, DevicesConfig(pageable_gigabytes_per_s=10))
        self._corrupt, self._broken = corrupt, broken
        self.closed = False

    def open(self, src: str, dst: str, path: str, copy_bytes: int, slot: int = 0) -> Crossing:
        if (src, dst) == self._broken:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 244 MiB.\nMore lines.")
        crossing = super().open(src, dst, path, copy_bytes, slot)
        if (src, dst) == self._corrupt:
            return _Corrupting(crossing)
        return crossing


class _Corrupting:
    def __init__(self, crossing: Crossing) -> None:
        self._crossing, self.copy_bytes = crossing, crossing.copy_bytes
        self.begin, self.end = crossing.begin, crossing.end

    def wrong_words(self) -> int:
        return self._crossing.wrong_words() + 5


def test_a_corrupt_edge_is_counted_and_a_broken_one_has_its_reason() -> None:
    ends = FaultyEnds(3, corrupt=("logical:0", "logical:1"), broken=("logical:2", host))
    facts = LinkProbe(ends, 8_000).measure()
    [corrupt] = facts.corrupt
    assert (corrupt.src, corrupt.dst, corrupt.path) == ("logical:0", "logical:1", "peer")
    assert corrupt.wrong_words == 10, "alone and both ways"
    assert corrupt.words == 2 * 1000
    assert "10 of 2000 words arrived wrong" in facts.findings[0]
    broken = facts.edge("logical:2", host, "pinned")
    assert broken is not None
    assert broken.reason == "OutOfMemoryError: CUDA out of memory. Tried to allocate 244 MiB."
    assert (broken.gb_per_s, broken.correct, broken.latency_us) == (None, None, None)
    fine = facts.edge("logical:1", host, "pinned")
    assert fine is not None
    assert fine.gb_per_s is not None
    assert fine.correct is True


def test_a_paced_link_is_given_no_more_than_it_carries_in_time() -> None:
    ends = LogicalEnds(
        2, DevicesConfig(link_gigabytes_per_s=50, pinned_gigabytes_per_s=0.1, pageable_gigabytes_per_s=1e-6)
    )
    assert ends.copy_bytes("peer", 8_000_000) == 8_000_000
    assert ends.copy_bytes("pinned", 256_000_000) == pytest.approx(0.1e9 * logical_copy_s, abs=8)
    assert ends.copy_bytes("pageable", 256_000_000) % 8 == 0
    assert ends.copy_bytes("pageable", 256_000_000) > 0


class CountedEnds:
    """Ends like CUDA's: device buffers of their own, host memory shared; counts what exists at once."""

    emulated = True

    def __init__(self, count: int, largest_bytes: int) -> None:
        self.devices = [LogicalDevice(index) for index in range(count)]
        self._logical = LogicalEnds(
            count, DevicesConfig(pinned_gigabytes_per_s=50, pageable_gigabytes_per_s=50)
        )
        self._memory = HostMemory(largest_bytes, lambda _, size: self._make(size))
        self.alive_bytes = self.most_bytes = self._opened = 0

    def _make(self, size: int) -> torch.Tensor:
        memory = np.zeros(size, dtype=np.uint8)
        self.alive_bytes += size
        self.most_bytes = max(self.most_bytes, self.alive_bytes)
        weakref.finalize(memory, self._gone, size)
        return torch.from_numpy(memory)

    def _gone(self, size: int) -> None:
        self.alive_bytes -= size

    def copy_bytes(self, path: str, wanted_bytes: int) -> int:
        return wanted_bytes

    def peer_access(self, src: str, dst: str) -> bool | None:
        return None

    def open(self, src: str, dst: str, path: str, copy_bytes: int, slot: int = 0) -> Crossing:
        self._opened += 1
        source, destination = (
            self._memory.take(path, is_source=end == src, copy_bytes=copy_bytes, slot=slot)
            if end == host
            else self._make(copy_bytes).view(torch.int64)
            for end in (src, dst)
        )
        assert source.nbytes == destination.nbytes == copy_bytes
        link = self._logical._new_link("test", 50.0)
        return LogicalCrossing(source, destination, self._opened, link)

    def buffer_address(self, path: str) -> int | None:
        return self._memory.address(path)

    def close(self) -> None:
        """Nothing."""


@pytest.mark.parametrize("count", [2, 5])
def test_never_more_than_four_buffers_of_the_largest_size(count: int) -> None:
    ends = CountedEnds(count, 80_000)
    facts = LinkProbe(ends, 80_000).measure()
    gc.collect()
    assert all(edge.correct for edge in facts.edges), "slots in use at once do not overlap"
    assert ends.most_bytes <= 4 * 80_000 + 64 * count


def test_the_node_of_the_buffer_is_read_where_it_lies(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/numa_maps").write_text("0 default anon=5 N1=5\n")
    facts = LinkProbe(CountedEnds(1, 80_000), 80_000, root=tmp_path).measure()
    assert {edge.buffer_node for edge in facts.edges} == {1}


def test_gpus_that_must_be_there_and_are_not_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceError, match="no GPU"):
        measure_links(load_config(None, ["devices.kind=cuda"]), 8_000)


def test_the_iommu_is_on_where_devices_sit_in_groups(tmp_path: Path) -> None:
    assert iommu_is_on(tmp_path) is None
    (tmp_path / "sys/kernel/iommu_groups").mkdir(parents=True)
    assert iommu_is_on(tmp_path) is False
    (tmp_path / "sys/kernel/iommu_groups/0").mkdir()
    assert iommu_is_on(tmp_path) is True


def test_single_ways_are_measured_alone_as_far_as_the_time_goes() -> None:
    now = iter([0.0, 0.0, 1.0, 2.0, 3.0])
    ends = LogicalEnds(2, DevicesConfig(pinned_gigabytes_per_s=0.01), paced_link)
    ways = [
        ("logical:1", host, "pinned"),
        (host, "logical:7", "pinned"),
        (host, "logical:0", "pinned"),
        ("logical:0", "logical:1", "peer"),
    ]
    facts = LinkProbe(ends, 80_000).measure_only(ways, limit_s=2.5, clock_s=lambda: next(now))
    ends.close()
    first, missing, third, late = facts.edges
    assert first.gb_per_s == pytest.approx(0.01, rel=0.02)
    assert first.correct is True
    assert first.both_ways_gb_per_s is None
    assert missing.reason == "there is no logical:7 here"
    assert third.gb_per_s == pytest.approx(0.01, rel=0.02)
    assert late.reason == "not measured: 2.5 s were over"
    assert decode(LinkFacts, facts.to_json()) == facts
