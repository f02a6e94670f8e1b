"""NUMA facts from the files that tell them; -1 and absence are unknown, never node 0."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from profiler.numa import gpu_node, memory_by_node, read_nodes
from profiler.samplers import numa
from profiler.samplers.numa import NumaSampler

maps = """\
55d0c0000000 default file=/usr/bin/python3 mapped=600 N0=600 kernelpagesize_kB=4
7f0000000000 default anon=1000 dirty=1000 N0=900 N1=100 kernelpagesize_kB=4
7f1000000000 bind:1 file=/dev/zero\\040(deleted) dirty=50 N1=50 kernelpagesize_kB=4
7f2000000000 default anon=3 dirty=3 N1=3 kernelpagesize_kB=2048
7f3000000000 default file=/memfd:x\\040(deleted) dirty=1 N0=1 kernelpagesize_kB=4
7f4000000000 default
ffff00000000 default anon=N9=1 stack
"""


def make_nodes(root: Path, count: int) -> None:
    for node in range(count):
        directory = root / "sys/devices/system/node" / f"node{node}"
        directory.mkdir(parents=True)
        (directory / "cpulist").write_text(f"{8 * node}-{8 * node + 7}\n")


def test_anonymous_and_shared_pages_are_counted_by_node_and_page_size() -> None:
    assert memory_by_node(maps.splitlines()) == {
        0: (900 + 1) * 4096,
        1: (100 + 50) * 4096 + 3 * 2048 * 1024,
    }


def test_nodes_are_read_with_their_cpus(tmp_path: Path) -> None:
    make_nodes(tmp_path, 2)
    assert read_nodes(tmp_path) == {0: "0-7", 1: "8-15"}
    assert read_nodes(tmp_path / "elsewhere") == {}


@pytest.mark.parametrize(
    ("address", "said", "node"),
    [
        ("00000000:18:00.0", "1", 1),
        ("0000:18:00.0", "0", 0),
        ("00000000:18:00.0", "-1", None),
        ("00000000:18:00.0", None, None),
        ("00000000:18:00.0", "x", None),
        ("../../../18", "1", None),
        (None, "1", None),
    ],
)
def test_a_gpus_node_is_what_the_kernel_says(
    tmp_path: Path, address: str | None, said: str | None, node: int | None
) -> None:
    device = tmp_path / "sys/bus/pci/devices/0000:18:00.0"
    device.mkdir(parents=True)
    if said is not None:
        (device / "numa_node").write_text(f"{said}\n")
    assert gpu_node(address, tmp_path) == node


@pytest.fixture
def two_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    make_nodes(tmp_path, 2)
    monkeypatch.setattr(numa, "descendants", lambda root: [7, 8])
    for pid in (7, 8):
        (tmp_path / f"proc/{pid}").mkdir(parents=True)
    return tmp_path


def test_the_runs_memory_is_summed_by_node(two_nodes: Path) -> None:
    (two_nodes / "proc/7/numa_maps").write_text(maps)
    (two_nodes / "proc/8/numa_maps").write_text("7f0 default anon=2 N0=2 kernelpagesize_kB=4\n")
    sampler = NumaSampler(1, root=two_nodes)
    assert sampler.open() is None
    found = {row.key: row.value for row in sampler.sample()}
    assert found == {"node0": 903 * 4096, "node1": 150 * 4096 + 3 * 2048 * 1024}


def test_a_dear_answer_is_not_asked_for_again_soon(two_nodes: Path) -> None:
    (two_nodes / "proc/7/numa_maps").write_text(maps)
    sampler = NumaSampler(1, root=two_nodes)
    sampler.open()
    assert list(sampler.sample())
    sampler._ask_after_s += 100  # as after an answer that took a tenth of a second
    assert list(sampler.sample()) == []


def test_no_processes_is_a_reason_and_not_zero(two_nodes: Path) -> None:
    sampler = NumaSampler(1, root=two_nodes)
    sampler.open()
    rows = list(sampler.sample())
    assert [(row.value, row.reason) for row in rows] == [
        (None, "the command has no processes yet, or no longer")
    ] * 2


def test_one_node_is_nothing_to_sample(tmp_path: Path) -> None:
    make_nodes(tmp_path, 1)
    assert NumaSampler(os.getpid(), root=tmp_path).open() == "this machine has one NUMA node"
    assert NumaSampler(os.getpid(), root=tmp_path / "x").open() == "this system does not tell NUMA nodes"
