"""Sums over a process tree: what /proc says, and totals that survive the end of their parts."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from profiler import process_tree
from profiler.process_tree import ProcessTree

MiB = 1 << 20
ticks_per_s = os.sysconf("SC_CLK_TCK")


def write_process(
    proc: Path,
    pid: int,
    *,
    anon_kb: int,
    threads: dict[int, tuple[int, int, int]],
    faults: int = 9,
    cpu_s: float | None = None,
) -> None:
    """`threads`: tid to schedstat's run ns, wait ns and time slices; `cpu_s`: their sum without it."""
    if cpu_s is None:
        cpu_s = sum(run_ns for run_ns, _, _ in threads.values()) / 1e9
    user = round(0.75 * cpu_s * ticks_per_s)
    system = round(cpu_s * ticks_per_s) - user
    folder = proc / str(pid)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "comm").write_text("python\n")
    (folder / "status").write_text(
        f"Name:\tpython\nVmLck:\t16 kB\nVmPin:\t32 kB\n"
        f"RssAnon:\t{anon_kb} kB\nRssFile:\t8 kB\nRssShmem:\t4 kB\nVmSwap:\t2 kB\n"
    )
    (folder / "stat").write_text(f"{pid} (a) b (c)) S 1 2 3 4 5 6 70 80 {faults} 100 {user} {system}\n")
    for tid, (run_ns, wait_ns, slices) in threads.items():
        (folder / "task" / str(tid)).mkdir(parents=True, exist_ok=True)
        (folder / "task" / str(tid) / "comm").write_text(f"worker{tid}\n")
        (folder / "task" / str(tid) / "schedstat").write_text(f"{run_ns} {wait_ns} {slices}\n")


def remove_thread(proc: Path, pid: int, tid: int) -> None:
    folder = proc / str(pid) / "task" / str(tid)
    for name in ("comm", "schedstat"):
        (folder / name).unlink()
    folder.rmdir()


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ProcessTree:
    """Processes 10 (threads 10, 11) and 20 (thread 20) below 1."""
    write_process(tmp_path, 10, anon_kb=100, threads={10: (10**9, 5 * 10**8, 7), 11: (2 * 10**9, 0, 3)})
    write_process(tmp_path, 20, anon_kb=50, threads={20: (4 * 10**9, 0, 1)})
    monkeypatch.setattr(process_tree, "descendants", lambda root: [10, 20])
    tree = ProcessTree(1, proc=tmp_path, clock=iter(range(1000)).__next__)
    tree.refresh()
    return tree


def test_tree_is_summed(tree: ProcessTree) -> None:
    assert [tree.memory_bytes(kind) for kind in ("anon", "file", "shmem", "swap")] == [
        150 * 1024,
        16 * 1024,
        8 * 1024,
        4 * 1024,
    ]
    assert (tree.cpu_s, tree.switches) == (7.0, 11)
    thread = tree.processes[10].threads[10]
    assert (thread.key, thread.run_queue_wait_s) == ("10:worker10", 0.5)


def test_totals_keep_what_ended_threads_and_processes_used(
    tree: ProcessTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove_thread(tmp_path, 10, 11)
    (tmp_path / "20" / "status").unlink()
    monkeypatch.setattr(process_tree, "descendants", lambda root: [10])
    tree.refresh()
    assert set(tree.processes) == {10}
    assert (tree.cpu_s, tree.switches) == (7.0, 11)
    assert tree.memory_bytes("anon") == 100 * 1024


def test_memory_that_the_kernel_does_not_split_is_unknown(tree: ProcessTree, tmp_path: Path) -> None:
    for pid in (10, 20):
        (tmp_path / str(pid) / "status").write_text("Name:\tpython\nVmRSS:\t100 kB\n")
    tree.refresh()
    assert tree.memory_bytes("anon") is None


def test_scans_for_new_processes_stay_cheap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_process(tmp_path, 10, anon_kb=1, threads={10: (0, 0, 0)})
    now_s = [100.0]
    scans: list[float] = []

    def slow_scan(root: int) -> list[int]:
        scans.append(now_s[0])
        now_s[0] += 0.05  # a machine with thousands of processes
        return [10]

    monkeypatch.setattr(process_tree, "descendants", slow_scan)
    tree = ProcessTree(1, proc=tmp_path, clock=lambda: now_s[0])
    while now_s[0] < 220:
        tree.refresh()
        now_s[0] += 0.5
    assert len(scans) > 3
    assert 0.05 * len(scans) <= 1.1 * process_tree.scan_share * 120 + 0.05


def test_real_process_is_measured() -> None:
    code = "b = bytearray(50_000_000); x = sum(range(3_000_000)); print(flush=True); input()"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with child:
        assert child.stdout is not None
        child.stdout.readline()
        tree = ProcessTree(os.getpid())
        tree.refresh()
        process = tree.processes[child.pid]
        anon = process.memory["anon"]
        child.kill()
    assert anon is not None
    assert anon > 45 * MiB
    assert process.cpu_s > 0.02
    assert process.switches > 0
    assert process.name.startswith("python")


def test_threads_are_told_apart_by_native_id() -> None:
    code = (
        "import threading, time\n"
        "t = threading.Thread(target=time.sleep, args=(60,), daemon=True); t.start()\n"
        "print(t.native_id, flush=True); input()"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with child:
        assert child.stdout is not None
        tid = int(child.stdout.readline())
        tree = ProcessTree(os.getpid())
        tree.refresh()
        child.kill()
    assert set(tree.processes[child.pid].threads) == {child.pid, tid}
    assert threading.get_native_id() not in tree.processes  # the root is not part of its tree


def test_pages_that_cannot_be_swapped_and_faults_are_summed(tree: ProcessTree) -> None:
    assert (tree.memory_bytes("locked"), tree.memory_bytes("pinned")) == (32 * 1024, 64 * 1024)
    assert tree.major_faults == 18


def test_faults_of_an_ended_process_are_kept(tree: ProcessTree, tmp_path: Path) -> None:
    write_process(tmp_path, 10, anon_kb=100, threads={}, faults=1000)
    tree.refresh()
    shutil.rmtree(tmp_path / "10")
    tree.refresh()
    assert tree.major_faults == 1009


def write_switches(proc: Path, pid: int, tid: int, voluntary: int, involuntary: int) -> None:
    text = f"Name:\tx\nvoluntary_ctxt_switches:\t{voluntary}\nnonvoluntary_ctxt_switches:\t{involuntary}\n"
    (proc / str(pid) / "task" / str(tid) / "status").write_text(text)


def test_why_threads_left_their_cpus_is_read_of_those_that_ran(tree: ProcessTree, tmp_path: Path) -> None:
    write_switches(tmp_path, 10, 10, 5, 2)
    tree.refresh_switches()  # thread 11 has no such file: as if it had ended
    first, other = tree.processes[10].threads[10], tree.processes[10].threads[11]
    assert (first.gave_up, first.pushed_off) == (5, 2)
    assert (other.gave_up, other.pushed_off) == (None, None)
    write_switches(tmp_path, 10, 10, 50, 20)
    tree.refresh_switches()
    assert (first.gave_up, first.pushed_off) == (5, 2)  # it has not run since: nothing to read
    first.switches += 1
    tree.refresh_switches()
    assert (first.gave_up, first.pushed_off) == (50, 20)


@dataclass
class Sleepy:
    """A process of one worker and many threads that sleep for ever, looked at each second."""

    folder: Path
    tree: ProcessTree
    now_s: float = 100.0
    worker_s: int = 0
    reads: Counter[int] = field(default_factory=Counter)
    sleepers: dict[int, tuple[int, int, int]] = field(default_factory=dict)

    @property
    def used_s(self) -> float:
        """CPU time of all threads that are there."""
        return self.worker_s + sum(run_ns for run_ns, _, _ in self.sleepers.values()) / 1e9

    def second(self, cpu_s: float | None = None) -> set[int]:
        """Let a second of the worker pass; returns the threads that are said to have run."""
        self.now_s += 1
        self.worker_s += 1
        threads = {10: (self.worker_s * 10**9, 0, self.worker_s), **self.sleepers}
        write_process(self.folder, 10, anon_kb=1, threads=threads, cpu_s=cpu_s)
        self.reads.clear()
        return {thread.tid for thread in self.tree.refresh()}


@pytest.fixture
def sleepy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sleepy:
    monkeypatch.setattr(process_tree, "descendants", lambda root: [10])
    tree = ProcessTree(1, proc=tmp_path, clock=lambda: made.now_s)
    made = Sleepy(tmp_path, tree, sleepers={tid: (tid * 10**6, 0, 1) for tid in range(11, 51)})
    read = process_tree._read

    def count(path: str) -> bytes:
        if path.endswith("schedstat"):
            made.reads[int(path.split("/")[-2])] += 1
        return read(path)

    monkeypatch.setattr(process_tree, "_read", count)
    assert made.second() == set(range(10, 51))  # what is new counts as having run
    for _ in range(process_tree.asleep_after):
        assert made.second() == {10}
    return made


def test_sleepers_are_read_seldom_and_the_worker_each_time(sleepy: Sleepy) -> None:
    total = Counter[int]()
    for _ in range(20):
        assert sleepy.second() == {10}
        total += sleepy.reads
    assert total.pop(10) == 20
    assert total == dict.fromkeys(sleepy.sleepers, 20 // process_tree.sleeper_s)


def test_a_sleeper_that_wakes_is_noticed_within_five_seconds(sleepy: Sleepy) -> None:
    sleepy.sleepers[30] = (31 * 10**6, 7, 2)  # a millisecond: too little for the process's sum to tell
    ran = [sleepy.second() for _ in range(round(process_tree.sleeper_s))]
    assert {10, 30} in ran
    thread = sleepy.tree.processes[10].threads[30]
    assert (thread.cpu_s, thread.run_queue_wait_s, thread.switches) == (0.031, 7e-9, 2)
    sleepy.sleepers[30] = (32 * 10**6, 7, 3)
    assert sleepy.second() == {10, 30}  # from now on it is looked at each time
    assert sleepy.tree.cpu_s == pytest.approx(sleepy.used_s)


def test_a_sleeper_that_works_is_noticed_at_once(sleepy: Sleepy) -> None:
    sleepy.second()  # its time has not come for seconds
    sleepy.sleepers[30] = (400 * 10**6, 0, 5)
    assert sleepy.second() == {10, 30}
    assert sleepy.tree.cpu_s == pytest.approx(sleepy.used_s)
    assert sleepy.second() == {10}
    assert set(sleepy.reads) == {10, 30}  # the worker, and who has just run


def test_threads_that_come_and_go_unseen_do_not_make_everyone_read_for_ever(sleepy: Sleepy) -> None:
    told_s = sleepy.used_s
    gone_s = 3.0  # of CPU time, by threads that no look ever saw
    sleepy.second(told_s + 1 + gone_s)
    assert set(sleepy.reads) == {10, *sleepy.sleepers}
    sleepy.second(told_s + 2 + gone_s)
    assert set(sleepy.reads) == {10}
