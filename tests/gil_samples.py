"""Adds to a played run what its samplers would have seen of the GIL."""

from __future__ import annotations

from pathlib import Path

from dflash.contract.arrowlog import ArrowLog
from dflash.contract.events import sample_schema
from profiler.run import Run
from tests.run_builder import nanoseconds

stages = {"prefetch": 200, "target": 300, "drafter": 400}  # native ids of the played threads, by index
Shares = dict[int, float]


def add_gil(
    path: Path, waits: Shares, *, cpu: float = 0.3, ready: float = 0.02, holder: str | None = "spin-1"
) -> Path:
    """Samples of threads that wait for the GIL so much of their time, beside a played run.

    `holder`: the thread that py-spy saw; None: it did not run, as when nobody asks for it.
    """
    end_s = Run.open(path).events["t_ns"].max() / 1e9 - nanoseconds(0) / 1e9
    sources = ("gil_wait", "host") if holder is None else ("gil_wait", "host", "gil")
    logs = {name: ArrowLog(path / "samples" / f"{name}-gil.arrow", sample_schema) for name in sources}

    def add(
        source: str, key: str, metric: str, at_s: float, value: float | None, reason: str | None = None
    ) -> None:
        logs[source].append((nanoseconds(at_s), source, key, metric, value, reason))

    for second in range(int(end_s) + 2):
        add("gil_wait", "*", "gil_sweeps", second, 50.0 * second)
        add("host", "tree", "cpu_s", second, 1.2 * second)
        for tid, share in waits.items():
            add("gil_wait", f"{tid}:python", "gil_wait_samples", second, 50.0 * second * share)
            add("host", f"{tid}:python", "thread_cpu_s", second, cpu * second)
            add("host", f"{tid}:python", "thread_run_queue_wait_s", second, ready * second)
        if holder is not None and second % 8 == 0:
            add("gil", "*", "gil_held_share", second, 0.9)
            add("gil", holder, "gil_hold_share", second, 0.6)
    for log in logs.values():
        log.close()
    return path
