"""Host sampling of a real small process tree."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from dflash.contract.cgroup import MemoryCgroup
from profiler.samplers import host
from profiler.samplers.base import Reading
from profiler.samplers.host import HostSampler


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    code = "b = bytearray(30_000_000); x = sum(range(2_000_000)); print(flush=True); input()"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with child:
        assert child.stdout is not None
        child.stdout.readline()
        yield child
        child.kill()


def told_of(
    child: subprocess.Popen[bytes], rows: dict[tuple[str, str], Reading]
) -> dict[tuple[str, str], float | None]:
    """What is told of its threads' CPU time."""
    return {
        (key, metric): row.value
        for (key, metric), row in rows.items()
        if metric == "thread_cpu_s" and key.startswith(f"{child.pid}:")
    }


def by_key(rows: list[Reading]) -> dict[tuple[str, str], Reading]:
    return {(row.key, row.metric): row for row in rows}


def test_tree_machine_and_threads_are_read(child: subprocess.Popen[bytes]) -> None:
    sampler = HostSampler(os.getpid())
    assert sampler.open() is None
    found = by_key(list(sampler.sample()))
    anon, cpu_s = found["tree", "rss_anon_bytes"].value, found["tree", "cpu_s"].value
    assert anon is not None
    assert anon > 25_000_000
    assert cpu_s is not None
    assert cpu_s > 0
    assert found["machine", "mem_total_bytes"].value == psutil.virtual_memory().total
    (thread,) = [key for key, metric in found if metric == "thread_cpu_s" and key.startswith(f"{child.pid}:")]
    assert found[thread, "thread_run_queue_wait_s"].value is not None


def test_sleeping_threads_and_constants_are_not_repeated(child: subprocess.Popen[bytes]) -> None:
    sampler = HostSampler(os.getpid())
    sampler.open()
    last = by_key(list(sampler.sample()))
    assert told_of(child, last)
    deadline = time.monotonic() + 30
    while told := told_of(child, last):
        assert time.monotonic() < deadline, "it sleeps, and is told of again and again"
        last = by_key(list(sampler.sample()))  # it may not have fallen asleep yet: then it has news
        assert all(last[key].value != told[key] for key in told_of(child, last).keys() & told.keys())
        assert ("machine", "mem_total_bytes") not in last
        assert ("tree", "cpu_s") in last


def test_tree_without_processes_has_no_sums() -> None:
    sampler = HostSampler(2**22 + 1)  # above the highest pid
    sampler.open()
    assert "tree" not in {row.key for row in sampler.sample()}


def test_memory_limit_is_the_lesser_of_host_and_cgroup(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.current").write_text("5000\n")
    limited = MemoryCgroup(((tmp_path,),))
    monkeypatch.setattr(host.MemoryCgroup, "of_process", lambda pid: limited)
    sampler = HostSampler(os.getpid())
    sampler.open()
    found = by_key(list(sampler.sample()))
    assert found["machine", "mem_limit_bytes"].value == 1_000_000
    assert found["cgroup", "cgroup_limit_bytes"].value == 1_000_000
    assert found["cgroup", "cgroup_usage_bytes"].value == 5000


def test_missing_limit_is_said_once_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host.MemoryCgroup, "of_process", lambda pid: MemoryCgroup(()))
    sampler = HostSampler(os.getpid())
    sampler.open()
    rows = [*sampler.sample(), *sampler.sample()]
    told = [(row.metric, row.value, row.reason) for row in rows if row.key == "cgroup"]
    assert told == [
        ("cgroup_limit_bytes", None, "no limit is set"),
        ("cgroup_usage_bytes", None, "no cgroup counts memory here"),
    ]
    assert by_key(rows)["machine", "mem_limit_bytes"].value == psutil.virtual_memory().total


def test_held_memory_faults_and_switches_are_told_when_they_change(child: subprocess.Popen[bytes]) -> None:
    sampler = HostSampler(os.getpid())
    sampler.open()
    found = by_key(list(sampler.sample()))
    for metric in ("locked_bytes", "pinned_bytes", "major_faults"):
        value = found["tree", metric].value
        assert value is not None
        assert value >= 0
    keys = {key for key, metric in found if metric == "thread_voluntary_switches"}
    assert any(key.startswith(f"{child.pid}:") for key in keys)
    again = by_key(list(sampler.sample()))
    assert not [metric for _, metric in again if metric.endswith("_switches") and metric.startswith("thread")]
