"""Samples the host: the trainer's processes and threads, the machine, and the memory limit that applies.

Keys: `tree` (sums over all processes of the run), PID:NAME, TID:NAME, `machine`, `cgroup`. Counters such as
CPU time are totals since the start; readers take differences. Knows nothing of GPUs.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from dflash.contract.cgroup import MemoryCgroup
from profiler.process_tree import ProcessTree
from profiler.samplers.base import Reading, Sampler

tree_metrics = ("rss_anon_bytes", "rss_file_bytes", "rss_shmem_bytes", "swap_bytes")
held_metrics = ("locked_bytes", "pinned_bytes")  # of the tree, on change
switches_every_s = 5.0  # a file a thread: too dear for every sample


class HostSampler(Sampler):
    """Everything below `root_pid` in the process tree, and what surrounds it."""

    name = "host"
    metrics = (
        *tree_metrics,
        *held_metrics,
        "major_faults",
        "cpu_s",
        "context_switches",
        "processes",
        "threads",
        "process_rss_bytes",
        "process_cpu_s",
        "thread_cpu_s",
        "thread_run_queue_wait_s",
        "thread_voluntary_switches",
        "thread_involuntary_switches",
        "mem_total_bytes",
        "mem_available_bytes",
        "mem_limit_bytes",
        "cpu_busy_s",
        "cpu_idle_s",
        "swap_in_bytes",
        "swap_out_bytes",
        "cgroup_limit_bytes",
        "cgroup_usage_bytes",
    )

    def __init__(self, root_pid: int, interval_s: float = 1.0) -> None:
        self.interval_s = interval_s
        self._tree = ProcessTree(root_pid)
        self._cgroup = MemoryCgroup(())
        self._root_pid = root_pid
        self._last: dict[tuple[str, str], tuple[float | None, str | None]] = {}
        self._t_ns = 0
        self._next_switches_s = 0.0

    def open(self) -> str | None:
        if not Path("/proc/self/schedstat").exists():
            return "this system has no /proc/PID/schedstat (Linux with scheduler statistics is needed)"
        self._cgroup = MemoryCgroup.of_process(self._root_pid)
        return None

    def sample(self) -> Iterator[Reading]:
        self._t_ns = time.monotonic_ns()
        ran = self._tree.refresh()
        yield from self._sample_tree()
        for thread in ran:  # a few of hundreds
            yield from self._on_change(thread.key, "thread_cpu_s", thread.cpu_s)
            yield from self._on_change(thread.key, "thread_run_queue_wait_s", thread.run_queue_wait_s)
        if time.monotonic() >= self._next_switches_s:
            self._next_switches_s = time.monotonic() + switches_every_s
            for thread in self._tree.refresh_switches():
                if thread.gave_up is not None and thread.pushed_off is not None:
                    yield from self._on_change(thread.key, "thread_voluntary_switches", thread.gave_up)
                    yield from self._on_change(thread.key, "thread_involuntary_switches", thread.pushed_off)
        yield from self._sample_machine()

    def close(self) -> Iterator[Reading]:
        return iter(())

    def _sample_tree(self) -> Iterator[Reading]:
        tree, processes = self._tree, self._tree.processes.values()
        if not processes:
            return  # not started yet, or over: no sums of nothing
        for metric in tree_metrics:
            kind = metric.removeprefix("rss_").removesuffix("_bytes")
            yield self._read("tree", metric, tree.memory_bytes(kind), "the kernel does not say")
        for metric in held_metrics:
            value = tree.memory_bytes(metric.removesuffix("_bytes"))
            yield from self._on_change("tree", metric, value, "the kernel does not say")
        yield from self._on_change("tree", "major_faults", tree.major_faults)
        yield self._read("tree", "cpu_s", tree.cpu_s)
        yield self._read("tree", "context_switches", tree.switches)
        yield self._read("tree", "processes", len(processes))
        yield self._read("tree", "threads", sum(len(p.threads) for p in processes))
        for process in processes:
            known = [process.memory[kind] for kind in ("anon", "file", "shmem")]
            rss_bytes = sum(part for part in known if part is not None) if any(known) else None
            yield self._read(process.key, "process_rss_bytes", rss_bytes, "the kernel does not say")
            yield self._read(process.key, "process_cpu_s", process.cpu_s)

    def _sample_machine(self) -> Iterator[Reading]:
        memory, swap, cpu = psutil.virtual_memory(), psutil.swap_memory(), psutil.cpu_times()
        limit = self._cgroup.limit_bytes()
        idle_s = cpu.idle + cpu.iowait
        yield self._read("machine", "mem_available_bytes", memory.available)
        yield self._read("machine", "cpu_busy_s", sum(cpu[:8]) - idle_s)  # guest time is part of user time
        yield self._read("machine", "cpu_idle_s", idle_s)
        yield from self._on_change("machine", "mem_total_bytes", memory.total)
        yield from self._on_change("machine", "mem_limit_bytes", min(memory.total, limit or memory.total))
        yield from self._on_change("machine", "swap_in_bytes", swap.sin)
        yield from self._on_change("machine", "swap_out_bytes", swap.sout)
        yield from self._on_change("cgroup", "cgroup_limit_bytes", limit, "no limit is set")
        usage = self._cgroup.usage_bytes()
        if usage is not None:
            yield self._read("cgroup", "cgroup_usage_bytes", usage)
        else:
            yield from self._on_change("cgroup", "cgroup_usage_bytes", None, "no cgroup counts memory here")

    def _read(self, key: str, metric: str, value: float | None, missing: str | None = None) -> Reading:
        return Reading(self._t_ns, key, metric, value, missing if value is None else None)

    def _on_change(
        self, key: str, metric: str, value: float | None, missing: str | None = None
    ) -> Iterator[Reading]:
        reading = self._read(key, metric, value, missing)
        news = (reading.value, reading.reason)
        if self._last.get((key, metric)) != news:
            self._last[key, metric] = news
            yield reading
