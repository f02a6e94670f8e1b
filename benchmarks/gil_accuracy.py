"""How right the GIL wait shares are: the sampler's, from outside, against the truth from inside.

The truth is a preloaded shim (gil_truth.c, compiled here with cc) that times every pthread_cond_timedwait of
the sampled program, which in CPython 3.10 to 3.13 is the wait in take_gil and nothing else.
    python benchmarks/gil_accuracy.py --out FILE.json [--python PYTHON …] [--seconds 40]
Wants an idle machine. A thread that was woken and has no CPU yet is still in that call, and waits for a CPU,
as schedstat tells; on a crowded machine the sampler waits for one too and misses part of that. So there are
two truths, with and without it, and `off_points` is how far the sampled share lies outside of them; on an
idle machine they are one. For waits of microseconds reading schedstat would disturb what is measured: only
the truth with it. Exit 1 when a case whose waits take milliseconds is more than 2 points off.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import platform
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from dflash.contract.arrowlog import ArrowLog, read_log
from dflash.contract.events import sample_schema
from dflash.contract.rundir import utc_now
from profiler.samplers.base import SamplerThread
from profiler.samplers.gil_wait import GilWaitSampler

here = Path(__file__).resolve().parent
slot = struct.Struct("<5Q")  # struct slot of gil_truth.c: tid, calls, waited_ns, since_ns, without_cpu_ns
slots = 256
none = (0.0, 0.0, 0)
tolerance = 0.02
cases: dict[str, tuple[tuple[str, ...], bool]] = {  # roles of the threads, and whether waits are milliseconds
    "4 busy": (("busy",) * 4, True),
    "1 busy, 3 dispatchers": (("busy", "dispatcher", "dispatcher", "dispatcher"), True),
    "C code holds it half of the time": (("holder", "dispatcher", "dispatcher"), True),
    "light dispatch": (("light",) * 4, False),
}
program = """
import ctypes, json, sys, threading, time
from dflash.contract.gil_range import describe_gil
keeps, releases = ctypes.PyDLL(None), ctypes.CDLL(None)
def busy():  # pure Python
    while True: pass
def dispatcher():  # some Python, then something that releases the GIL
    while True:
        for _ in range(500): pass
        time.sleep(0.0002)
def holder():  # C code that keeps the GIL for 5 of 10 ms
    while True:
        keeps.usleep(5000)
        time.sleep(0.005)
def light():  # nothing but releasing and taking it
    while True: releases.getppid()
gil = describe_gil()
threads = [threading.Thread(target=globals()[role], daemon=True) for role in sys.argv[1:]]
for thread in threads: thread.start()
print(json.dumps({**gil, "threads": [t.native_id for t in threads]}), flush=True)
sys.stdin.read()
"""


def compile_shim(folder: Path) -> Path:
    """The shim as a shared library."""
    library = folder / "gil_truth.so"
    command = [
        "cc",
        "-O2",
        "-shared",
        "-fPIC",
        "-o",
        str(library),
        str(here / "gil_truth.c"),
        "-ldl",
        "-pthread",
    ]
    subprocess.run(command, check=True)
    return library


def read_truth(memory: mmap.mmap) -> dict[int, tuple[float, float, int]]:
    """Seconds waited, seconds of it without a CPU, and waits by thread; one under way counts up to now."""
    now_ns = time.monotonic_ns()
    rows = [slot.unpack_from(memory, i * slot.size) for i in range(slots)]
    return {
        tid: ((waited_ns + (now_ns - since_ns if since_ns else 0)) / 1e9, without_cpu_ns / 1e9, calls)
        for tid, calls, waited_ns, since_ns, without_cpu_ns in rows
        if tid
    }


def read_schedule(pid: int, tid: int) -> tuple[float, float]:
    """Seconds on a CPU, and ready but without one."""
    run_ns, wait_ns, _ = Path(f"/proc/{pid}/task/{tid}/schedstat").read_text().split()
    return int(run_ns) / 1e9, int(wait_ns) / 1e9


@dataclass(frozen=True)
class Program:
    """The sampled program while it runs; `gil` is what it publishes, and its `threads`."""

    pid: int
    gil: dict[str, Any]
    memory: mmap.mmap


@dataclass(frozen=True)
class Counts:
    """What is known of every thread up to one moment: totals in seconds since the program's start."""

    at_s: float
    waits: dict[int, tuple[float, float, int]]  # as the shim counts them, see `read_truth`
    schedule: dict[int, tuple[float, float]]  # see `read_schedule`

    @classmethod
    def now(cls, child: Program) -> Counts:
        return cls(
            time.monotonic(),
            read_truth(child.memory),
            {tid: read_schedule(child.pid, tid) for tid in child.gil.get("threads", ())},
        )


@contextmanager
def running(python: str, library: Path, truth: Path, name: str) -> Iterator[Program]:
    """One case's program under the shim, which counts into the file `truth`; killed at the end."""
    roles, of_milliseconds = cases[name]
    truth.write_bytes(bytes(slots * slot.size))
    env = {
        **os.environ,
        "LD_PRELOAD": str(library),
        "GIL_TRUTH": str(truth),
        "PYTHONPATH": str(here.parent),
        "PYTHONDONTWRITEBYTECODE": "1",
        **({"GIL_TRUTH_CPU": "1"} if of_milliseconds else {}),
    }
    command = [python, "-c", program, *roles]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env) as child,
        truth.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as memory,
    ):
        try:
            assert child.stdout is not None
            yield Program(child.pid, json.loads(child.stdout.readline()), memory)
        finally:
            child.kill()


def measure(python: str, library: Path, folder: Path, name: str, seconds: float) -> dict[str, Any]:
    """One case: sampled from here while the shim counts."""
    roles, of_milliseconds = cases[name]
    log_path = folder / "samples.arrow"
    with running(python, library, folder / "truth", name) as child:
        gil = child.gil
        if "reason" in gil:
            return {"case": name, "python": gil["python"], "reason": gil["reason"]}
        time.sleep(1.0)
        thread = SamplerThread(GilWaitSampler(lambda: gil, os.getpid()), ArrowLog(log_path, sample_schema))
        before = Counts.now(child)
        thread.start()
        time.sleep(seconds)
        after = Counts.now(child)
        report = thread.stop()
    sampled, sweeps = read_samples(log_path)
    log_path.unlink()
    rows = [
        compare(role, tid, sampled.get(tid, 0) / sweeps, before, after)
        for role, tid in zip(roles, gil["threads"], strict=True)
    ]
    lasted_s = after.at_s - before.at_s
    return {
        "case": name,
        "of_milliseconds": of_milliseconds,
        "python": gil["python"],
        "seconds": round(lasted_s, 1),
        "sweeps": sweeps,
        "sampler_cpu_share": round(report.cpu_s / lasted_s, 4),
        "worst_off_points": max(abs(row["off_points"]) for row in rows),
        "threads": rows,
    }


def compare(role: str, tid: int, found: float, before: Counts, after: Counts) -> dict[str, Any]:
    """One thread: the sampled share `found` beside both truths."""
    lasted_s = after.at_s - before.at_s
    pairs = zip(before.waits.get(tid, none), after.waits.get(tid, none), strict=True)
    waited_s, ready_in_it_s, waits = (end - start for start, end in pairs)
    cpu_s, ready_s = (
        end - start for start, end in zip(before.schedule[tid], after.schedule[tid], strict=True)
    )
    low, high = (waited_s - ready_in_it_s) / lasted_s, waited_s / lasted_s
    return {
        "thread": role,
        "truth": round(low, 4),
        "truth_with_cpu_wait": round(high, 4),
        "sampled": round(found, 4),
        "off_points": round(100 * (max(found - high, 0.0) + min(found - low, 0.0)), 2),
        "waits_per_s": round(waits / lasted_s),
        "cpu_share": round(cpu_s / lasted_s, 4),
        "cpu_wait_share": round(ready_s / lasted_s, 4),
    }


def read_samples(path: Path) -> tuple[dict[int, float], int]:
    """Sweeps that found each thread waiting, and sweeps in all."""
    table, _ = read_log(path)
    waits: dict[int, float] = {}
    sweeps = 0
    for row in table.to_pylist():
        if row["value"] is None:
            continue
        if row["metric"] == "gil_wait_samples":
            waits[int(row["key"].partition(":")[0])] = row["value"]
        elif row["metric"] == "gil_sweeps":
            sweeps = int(row["value"])
    return waits, sweeps


def show(result: dict[str, Any]) -> None:
    """One case as lines for people."""
    if "reason" in result:
        print(f"{result['python']}  {result['case']}: n/a: {result['reason']}", flush=True)
        return
    print(
        f"{result['python']}  {result['case']}: {result['sweeps']} sweeps in {result['seconds']} s, "
        f"{100 * result['sampler_cpu_share']:.2f} % of a core"
    )
    for row in result["threads"]:
        truth = f"truth {row['truth']:.3f} to {row['truth_with_cpu_wait']:.3f}"
        found = f"sampled {row['sampled']:.3f}, off {row['off_points']:+.1f} points"
        print(f"    {row['thread']:11} {truth}  {found}  {row['waits_per_s']} waits/s", flush=True)


def main() -> int:
    """Measure all cases; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--python", nargs="+", default=[sys.executable])
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--case", nargs="+", choices=cases, default=list(cases))
    arguments = parser.parse_args()
    load_before, results = os.getloadavg(), []
    with tempfile.TemporaryDirectory() as folder:
        library = compile_shim(Path(folder))
        for python in arguments.python:
            for case in arguments.case:
                results.append(measure(python, library, Path(folder), case, arguments.seconds))
                show(results[-1])
    off = [r for r in results if r.get("of_milliseconds") and r["worst_off_points"] > 100 * tolerance]
    document = {
        "benchmark": "gil_accuracy",
        "utc": utc_now(),
        "command": ["python", *sys.argv],
        "host": {"cpus": os.cpu_count(), "kernel": platform.release(), "libc": " ".join(platform.libc_ver())},
        "load_before": load_before,
        "load_after": os.getloadavg(),
        "tolerance_points": 100 * tolerance,
        "within_tolerance": not off,
        "results": results,
    }
    arguments.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 1 if off else 0


if __name__ == "__main__":
    sys.exit(main())
