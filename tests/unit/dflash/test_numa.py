"""NUMA facts from the files that tell them; what is not said has a reason, and is never node 0."""

from __future__ import annotations

from pathlib import Path

import pytest

from dflash.contract.numa import memory_by_node, no_address, node_of_gpu, node_of_memory, read_nodes

maps = """\
55d0c0000000 default file=/usr/bin/python3 mapped=600 N0=600 kernelpagesize_kB=4
7f0000000000 default anon=1000 dirty=1000 N0=900 N1=100 kernelpagesize_kB=4
7f1000000000 bind:1 file=/dev/zero\\040(deleted) dirty=50 N1=50 kernelpagesize_kB=4
7f2000000000 default anon=3 dirty=3 N1=3 kernelpagesize_kB=2048
7f3000000000 default file=/memfd:x\\040(deleted) dirty=1 N0=1 kernelpagesize_kB=4
7f4000000000 default
ffff00000000 default anon=N9=1 stack
"""


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_nodes_are_read_in_order_with_their_cpus(tmp_path: Path) -> None:
    assert read_nodes(tmp_path) == {}
    for name, cpus in (("node1", "8-15\n"), ("node0", "0-7\n"), ("node10", "16-23\n"), ("node2", "")):
        write(tmp_path, f"sys/devices/system/node/{name}/cpulist", cpus)
    write(tmp_path, "sys/devices/system/node/possible", "0-10")
    found = read_nodes(tmp_path)
    assert list(found.items()) == [(0, "0-7"), (1, "8-15"), (2, ""), (10, "16-23")]


@pytest.mark.parametrize("address", ["00000000:4B:00.0", "0000:4b:00.0", "00000000:4b:00.0"])
def test_the_node_of_a_gpu_under_every_spelling_of_its_address(tmp_path: Path, address: str) -> None:
    write(tmp_path, "sys/bus/pci/devices/0000:4b:00.0/numa_node", "1\n")
    assert node_of_gpu(address, tmp_path) == (1, None)


@pytest.mark.parametrize("text", ["-1\n", "", "soon"])
def test_what_the_system_does_not_know_has_a_reason(tmp_path: Path, text: str) -> None:
    write(tmp_path, "sys/bus/pci/devices/0000:4b:00.0/numa_node", text)
    node, reason = node_of_gpu("00000000:4b:00.0", tmp_path)
    assert node is None
    assert reason
    assert node_of_gpu("00000000:4c:00.0", tmp_path)[1]


def test_what_is_no_address_leads_nowhere(tmp_path: Path) -> None:
    write(tmp_path, "sys/bus/pci/devices/0000:18:00.0/numa_node", "1\n")
    assert node_of_gpu(None, tmp_path) == (None, no_address)
    node, reason = node_of_gpu("../../../18", tmp_path)
    assert node is None
    assert reason == "'../../../18' is no PCI address"


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


def test_anonymous_and_shared_pages_are_counted_by_node_and_page_size() -> None:
    assert memory_by_node(maps.splitlines()) == {
        0: (900 + 1) * 4096,
        1: (100 + 50) * 4096 + 3 * 2048 * 1024,
    }
