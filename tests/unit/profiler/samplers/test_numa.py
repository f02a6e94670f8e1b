"""On which node the run's memory lies: summed over its processes, asked for seldom, never 0 for unknown."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from profiler.samplers import numa
from profiler.samplers.numa import NumaSampler

maps = """\
55d0c0000000 default file=/usr/bin/python3 mapped=600 N0=600 kernelpagesize_kB=4
7f0000000000 default anon=1000 dirty=1000 N0=900 N1=100 kernelpagesize_kB=4
"""


def make_nodes(root: Path, count: int) -> None:
    for node in range(count):
        directory = root / "sys/devices/system/node" / f"node{node}"
        directory.mkdir(parents=True)
        (directory / "cpulist").write_text(f"{8 * node}-{8 * node + 7}\n")


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
    assert found == {"node0": 902 * 4096, "node1": 100 * 4096}


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
