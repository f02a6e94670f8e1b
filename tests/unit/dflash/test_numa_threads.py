"""run_near: work runs on the CPUs of a GPU's node where that can be, and is run in any case."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from dflash.numa_threads import cpus_near, parse_cpus, run_near

pci = "00000000:18:00.0"


def system_of(root: Path, nodes: dict[int, str], gpu_node: int) -> Path:
    for node, cpus in nodes.items():
        directory = root / f"sys/devices/system/node/node{node}"
        directory.mkdir(parents=True)
        (directory / "cpulist").write_text(cpus)
    device = root / "sys/bus/pci/devices/0000:18:00.0"
    device.mkdir(parents=True)
    (device / "numa_node").write_text(str(gpu_node))
    return root


def test_cpus_are_read_as_the_system_writes_them() -> None:
    assert parse_cpus("0-3,8,10-11\n") == {0, 1, 2, 3, 8, 10, 11}
    assert parse_cpus("") == set()


def test_the_cpus_of_the_gpus_node_are_found(tmp_path: Path) -> None:
    root = system_of(tmp_path, {0: "0-1", 1: "2-3"}, gpu_node=1)
    assert cpus_near(pci, root) == {2, 3}
    assert cpus_near(None, root) == set()


def test_one_node_or_an_unknown_one_binds_nothing(tmp_path: Path) -> None:
    assert cpus_near(pci, system_of(tmp_path / "one", {0: "0-3"}, gpu_node=0)) == set()
    assert cpus_near(pci, system_of(tmp_path / "unknown", {0: "0-1", 1: "2-3"}, gpu_node=-1)) == set()


def test_work_runs_there_and_leaves_the_caller_where_it_was(tmp_path: Path) -> None:
    before = os.sched_getaffinity(0)
    own = min(before)
    root = system_of(tmp_path, {0: str(own), 1: "9998-9999"}, gpu_node=0)
    seen: list[set[int]] = []
    assert run_near(pci, lambda: seen.append(os.sched_getaffinity(0)), root)
    assert seen == [{own}]
    assert os.sched_getaffinity(0) == before


def test_work_is_run_also_where_the_nodes_cpus_are_not_ours(tmp_path: Path) -> None:
    root = system_of(tmp_path, {0: "0-1", 1: "9998-9999"}, gpu_node=1)
    seen: list[str] = []
    assert not run_near(pci, lambda: seen.append(threading.current_thread().name), root)
    assert len(seen) == 1


def test_what_work_raises_is_raised(tmp_path: Path) -> None:
    def fail() -> None:
        raise MemoryError("no pages")

    with pytest.raises(MemoryError, match="no pages"):
        run_near(None, fail, tmp_path)
