"""Nodes are read from a system's files, and unknown ones have a reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from dflash.numa import iommu_is_on, machine_nodes, node_of_gpu, node_of_memory


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_nodes_of_the_machine(tmp_path: Path) -> None:
    assert machine_nodes(tmp_path) is None
    for name in ("node1/cpulist", "node0/cpulist", "node10/cpulist", "possible"):
        write(tmp_path, f"sys/devices/system/node/{name}", "")
    assert machine_nodes(tmp_path) == (0, 1, 10)


def test_the_node_of_a_gpu_under_both_spellings_of_its_address(tmp_path: Path) -> None:
    write(tmp_path, "sys/bus/pci/devices/0000:4b:00.0/numa_node", "1\n")
    assert node_of_gpu("00000000:4B:00.0", tmp_path) == (1, None)
    assert node_of_gpu("0000:4b:00.0", tmp_path) == (1, None)


@pytest.mark.parametrize("text", ["-1\n", "", "soon"])
def test_what_the_system_does_not_know_has_a_reason(tmp_path: Path, text: str) -> None:
    write(tmp_path, "sys/bus/pci/devices/0000:4b:00.0/numa_node", text)
    node, reason = node_of_gpu("00000000:4b:00.0", tmp_path)
    assert node is None
    assert reason
    assert node_of_gpu("00000000:4c:00.0", tmp_path)[1]
    assert node_of_gpu(None, tmp_path) == (None, "the PCI address is unknown")


def test_the_node_of_memory_is_that_of_most_pages(tmp_path: Path) -> None:
    write(
        tmp_path,
        "proc/self/numa_maps",
        "00400000 default file=/usr/bin/python N0=3\n"
        "7f0000000000 default anon=40 dirty=40 N0=8 N1=32 kernelpagesize_kB=4\n"
        "7f1000000000 default\n",
    )
    assert node_of_memory(0x7F0000000100, tmp_path) == 1
    assert node_of_memory(0x7F1000000000, tmp_path) is None, "no page of it is there yet"
    assert node_of_memory(0x1000, tmp_path) is None
    assert node_of_memory(0x1000, tmp_path / "nowhere") is None


def test_the_iommu(tmp_path: Path) -> None:
    assert iommu_is_on(tmp_path) is None
    (tmp_path / "sys/kernel/iommu_groups").mkdir(parents=True)
    assert iommu_is_on(tmp_path) is False
    (tmp_path / "sys/kernel/iommu_groups/0").mkdir()
    assert iommu_is_on(tmp_path) is True
