"""Reads the processes below one process from /proc: memory by kind, CPU time, time spent waiting for a CPU.

Looking for new processes costs a scan of /proc, so it is done no more often than keeps it under a few
thousandths of a core. Most threads sleep for ever: those that did not run lately are read every few seconds,
or at once when their process used more CPU time than the threads that were read. Linux only. Knows nothing of
samplers.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from profiler.launcher import descendants

rescan_s = 2.0  # between looks for new processes, at the least
scan_share = 0.002  # of a core, at most
asleep_after = 2  # looks in a row that found that a thread had not run
sleeper_s = 5.0  # between looks at a thread that sleeps
unseen_cpu_s = 0.05  # used by sleepers: more makes all of them be read; the kernel's own sum is rough to 0.02
_tick_s = 1.0 / os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class ThreadState:
    """One thread. Times are since its start."""

    tid: int
    name: str
    cpu_s: float = 0.0
    run_queue_wait_s: float = 0.0  # ready to run, but no CPU was free
    switches: int = 0  # times it was given a CPU
    gave_up: int | None = None  # times it gave its CPU up to wait for something (voluntary switches)
    pushed_off: int | None = None  # times the CPU was taken away from it (involuntary ones)
    _switches_read: int = -1  # `switches` when the two above were read
    _still: int = -1  # looks in a row in which it had not run
    _look_after_s: float = 0.0

    @property
    def key(self) -> str:
        return f"{self.tid}:{self.name}"


@dataclass(slots=True)
class ProcessState:
    """One process. Memory as in /proc/PID/status, in bytes; None where the kernel does not say.

    `locked` is what mlock keeps from being swapped, `pinned` what drivers hold that count it there.
    """

    pid: int
    name: str
    memory: dict[str, int | None] = field(default_factory=dict)  # keys are the values of `memory_lines`
    major_faults: int = 0  # times a page had to come from disk or swap
    threads: dict[int, ThreadState] = field(default_factory=dict)
    ended_cpu_s: float = 0.0  # of its threads that have ended
    ended_switches: int = 0
    _total_s: float = 0.0  # CPU time of all its threads, ended ones too, as the kernel adds it up
    _beyond_s: float | None = None  # of which no thread told when all had just been read

    @property
    def key(self) -> str:
        return f"{self.pid}:{self.name}"

    @property
    def cpu_s(self) -> float:
        return self.ended_cpu_s + sum(t.cpu_s for t in self.threads.values())

    @property
    def switches(self) -> int:
        return self.ended_switches + sum(t.switches for t in self.threads.values())


memory_lines = {
    "RssAnon": "anon",
    "RssFile": "file",
    "RssShmem": "shmem",
    "VmSwap": "swap",
    "VmLck": "locked",
    "VmPin": "pinned",
}


class ProcessTree:
    """Everything below `root`, which itself is not counted. Totals never fall when a process ends."""

    def __init__(
        self, root: int, proc: Path = Path("/proc"), clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._root, self._proc, self._clock = root, proc, clock
        self._scan_after_s = 0.0
        self.processes: dict[int, ProcessState] = {}
        self._ended_cpu_s, self._ended_switches, self._ended_faults = 0.0, 0, 0

    @property
    def cpu_s(self) -> float:
        """CPU time of the tree, of ended processes as far as they had been seen."""
        return self._ended_cpu_s + sum(p.cpu_s for p in self.processes.values())

    @property
    def switches(self) -> int:
        """Times a thread of the tree was given a CPU."""
        return self._ended_switches + sum(p.switches for p in self.processes.values())

    @property
    def major_faults(self) -> int:
        """Times a page had to come from disk or swap."""
        return self._ended_faults + sum(p.major_faults for p in self.processes.values())

    def memory_bytes(self, kind: str) -> int | None:
        """Sum over the tree of a kind of memory. Shared pages count once for each process."""
        known = [value for p in self.processes.values() if (value := p.memory.get(kind)) is not None]
        return sum(known) if known else None

    def refresh(self) -> list[ThreadState]:
        """Read everything anew, sleepers only when it is their time. Returns the threads that ran."""
        self._find_processes()
        now_s = self._clock()
        ran: list[ThreadState] = []
        for process in list(self.processes.values()):
            try:
                self._read_memory(process)
                self._read_totals(process)
                ran += self._read_threads(process, now_s)
                if process._beyond_s is not None and self._is_more_used(process):
                    ran += self._read_threads(process, now_s, everyone=True)
                    process._beyond_s = None
                if process._beyond_s is None:  # everyone has just been read
                    process._beyond_s = process._total_s - process.cpu_s
            except (FileNotFoundError, ProcessLookupError):
                self._retire(process)
        return ran

    def refresh_switches(self) -> list[ThreadState]:
        """Read why threads left their CPUs, of those that have run since the last time; returns these."""
        ran = []
        for process in self.processes.values():
            for thread in process.threads.values():
                if thread.switches == thread._switches_read:
                    continue
                try:
                    self._read_switches(f"{self._proc}/{process.pid}/task/{thread.tid}/status", thread)
                except (FileNotFoundError, ProcessLookupError):
                    continue  # ended meanwhile
                ran.append(thread)
        return ran

    def _find_processes(self) -> None:
        now_s = self._clock()
        if now_s < self._scan_after_s and self.processes:
            return
        for pid in descendants(self._root):
            if pid not in self.processes:
                self.processes[pid] = ProcessState(pid, self._comm(self._proc / str(pid)))
        cost_s = self._clock() - now_s
        self._scan_after_s = now_s + max(rescan_s, cost_s / scan_share)

    def _read_memory(self, process: ProcessState) -> None:
        # Not smaps: that walks page tables under a lock that the process itself needs.
        process.memory = dict.fromkeys(memory_lines.values())
        for line in (self._proc / str(process.pid) / "status").read_text(errors="replace").splitlines():
            name, _, rest = line.partition(":")
            if name in memory_lines:
                process.memory[memory_lines[name]] = int(rest.split()[0]) * 1024
            elif name == "Name":
                process.name = rest.strip()  # it changes when the process turns into another program

    def _read_totals(self, process: ProcessState) -> None:
        # The program's name stands in brackets and may hold anything, brackets too.
        fields = _read(f"{self._proc}/{process.pid}/stat").rpartition(b")")[2].split()
        process.major_faults = int(fields[9])
        process._total_s = (int(fields[11]) + int(fields[12])) * _tick_s

    def _is_more_used(self, process: ProcessState) -> bool:
        """Whether threads that were not read must have run."""
        told_s = process.cpu_s + (process._beyond_s or 0.0)
        return process._total_s - told_s > unseen_cpu_s

    def _read_switches(self, path: str, thread: ThreadState) -> None:
        for line in _read(path).splitlines():
            name, _, rest = line.partition(b":")
            if name == b"voluntary_ctxt_switches":
                thread.gave_up = int(rest)
            elif name == b"nonvoluntary_ctxt_switches":
                thread.pushed_off = int(rest)
        thread._switches_read = thread.switches

    def _read_threads(
        self, process: ProcessState, now_s: float, *, everyone: bool = False
    ) -> list[ThreadState]:
        """Those whose time has come, or everyone; returns those that ran, new ones too."""
        tasks = f"{self._proc}/{process.pid}/task"
        known, alive, ran = process.threads, {}, []
        for name in os.listdir(tasks):  # noqa: PTH208 - hundreds of names each second
            tid = int(name)
            thread = known.get(tid)
            if thread is None:
                thread = ThreadState(tid, self._comm(Path(tasks, name)))
            elif thread._look_after_s > now_s and not everyone:
                alive[tid] = thread
                continue
            try:
                is_news = _look(thread, f"{tasks}/{name}/schedstat", now_s)
            except (FileNotFoundError, ProcessLookupError):
                continue  # ended meanwhile
            alive[tid] = thread
            if is_news:
                ran.append(thread)
        for tid, state in known.items():
            if tid not in alive:
                process.ended_cpu_s += state.cpu_s
                process.ended_switches += state.switches
        process.threads = alive
        return ran

    def _retire(self, process: ProcessState) -> None:
        del self.processes[process.pid]
        self._ended_cpu_s += process.cpu_s
        self._ended_switches += process.switches
        self._ended_faults += process.major_faults

    def _comm(self, directory: Path) -> str:
        try:
            return (directory / "comm").read_text(errors="replace").strip()
        except OSError:
            return "?"


def _look(thread: ThreadState, path: str, now_s: float) -> bool:
    """Whether it has run since the last look. Raises OSError when it has ended."""
    run_ns, wait_ns, switches = map(int, _read(path).split())
    is_news = (run_ns / 1e9, switches) != (thread.cpu_s, thread.switches) or thread._still < 0
    thread.cpu_s, thread.run_queue_wait_s, thread.switches = run_ns / 1e9, wait_ns / 1e9, switches
    thread._still = 0 if is_news else thread._still + 1
    thread._look_after_s = now_s + sleeper_s if thread._still >= asleep_after else now_s
    return is_news


def _read(path: str) -> bytes:
    """A file of /proc, whole; a third of the price of pathlib's way."""
    file = os.open(path, os.O_RDONLY)
    try:
        return os.read(file, 1 << 16)
    finally:
        os.close(file)
