"""Reads the processes below one process from /proc: memory by kind, CPU time, time spent waiting for a CPU.

Looking for new processes costs a scan of /proc, so it is done no more often than keeps it under a hundredth
of a core. Linux only. Knows nothing of samplers.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from profiler.launcher import descendants

rescan_s = 1.0  # between looks for new processes, at the least
scan_share = 0.01  # of a core, at most


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

    def refresh(self) -> None:
        """Read everything anew."""
        self._find_processes()
        for process in list(self.processes.values()):
            try:
                self._read_memory(process)
                self._read_faults(process)
                self._read_threads(process)
            except (FileNotFoundError, ProcessLookupError):
                self._retire(process)

    def refresh_switches(self) -> None:
        """Read why threads left their CPUs, of those that have run since the last time. A file a thread."""
        for process in self.processes.values():
            for thread in process.threads.values():
                if thread.switches == thread._switches_read:
                    continue
                try:
                    self._read_switches(self._proc / str(process.pid) / "task" / str(thread.tid), thread)
                except (FileNotFoundError, ProcessLookupError):
                    continue  # ended meanwhile

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

    def _read_faults(self, process: ProcessState) -> None:
        # The program's name stands in brackets and may hold anything, brackets too.
        fields = (self._proc / str(process.pid) / "stat").read_bytes().rpartition(b")")[2].split()
        process.major_faults = int(fields[9])

    def _read_switches(self, task: Path, thread: ThreadState) -> None:
        for line in (task / "status").read_text(errors="replace").splitlines():
            name, _, rest = line.partition(":")
            if name == "voluntary_ctxt_switches":
                thread.gave_up = int(rest)
            elif name == "nonvoluntary_ctxt_switches":
                thread.pushed_off = int(rest)
        thread._switches_read = thread.switches

    def _read_threads(self, process: ProcessState) -> None:
        tasks = self._proc / str(process.pid) / "task"
        alive: dict[int, ThreadState] = {}
        for task in tasks.iterdir():
            tid = int(task.name)
            state = process.threads.get(tid) or ThreadState(tid, self._comm(task))
            try:
                run_ns, wait_ns, switches = (task / "schedstat").read_text().split()
            except (FileNotFoundError, ProcessLookupError):
                continue  # ended meanwhile
            state.cpu_s, state.run_queue_wait_s = int(run_ns) / 1e9, int(wait_ns) / 1e9
            state.switches = int(switches)
            alive[tid] = state
        for tid, state in process.threads.items():
            if tid not in alive:
                process.ended_cpu_s += state.cpu_s
                process.ended_switches += state.switches
        process.threads = alive

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
