"""Samples which threads of the trainer wait for the GIL, from outside: reads /proc/PID/task/TID/syscall.

A thread waits when it sleeps in a futex inside the GIL's condition variable, whose place the trainer
publishes (dflash/contract/gil_range.py). Looks are counted, so that a share is a ratio of two counts: within
about 2 points for waits of milliseconds, too low for convoys of microseconds (docs/benchmarks/README.md). A
look costs about 4 µs; threads that sleep are looked at more seldom, and sweeps become rarer where they would
take more than a little of a core. Knows nothing of stages, nor of who holds the GIL.
"""

from __future__ import annotations

import ctypes
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from profiler.launcher import descendants
from profiler.samplers.base import Reading, Sampler, everything, retry_s

# linux/prctl.h. With slack, timers of a CPU fire together: one would look just as waits end.
pr_set_timerslack = 29
rate_hz = 50.0  # sweeps, at most
cost_share = 0.006  # of a core, at most
rows_every_s = 1.0  # and a look for new threads
most_threads = 400  # each holds a file open
# A thread that sleeps through so many looks in a row is looked at in every so many sweeps, most sleep first.
strides = ((48, 32), (32, 8))
_look_bytes = 128
_most_range_bytes = 4096

unpublished = (
    "the command did not publish where its GIL is (dflash.contract.gil_range.publish_gil_range does it)"
)
no_python = "not a Python program: nothing that runs is a Python interpreter, or published a GIL"
foreign = "the process that published its GIL is not below the command: it has ended, or is in a container"
no_proc = "the kernel or the sandbox shows no /proc/PID/task/TID/syscall"
unsound = "the place of the GIL in run.json is not an address range"
ended = "the thread ended"
other_user = "no permission: the trainer runs as another user; record as that user or as root"
yama = (
    "no permission: kernel.yama.ptrace_scope is {scope}; set it to 0, run as root, or let the recorder start "
    "the trainer"
)
no_ptrace = "no permission (needs SYS_PTRACE): start the container with --cap-add SYS_PTRACE, or run as root"


@dataclass(slots=True)
class _Thread:
    """One thread under watch. A look stands for all sweeps since the one before it."""

    tid: int
    key: str
    file: int
    last_sweep: int  # the sweep of the last look
    next_sweep: int
    waits: int = 0  # sweeps in which it waited
    written: int = -1  # what was last emitted of `waits`
    seen: bytes = b""
    waits_now: bool = False  # what `seen` means
    same: int = 0  # looks in a row that found it in one and the same sleep


class GilWaitSampler(Sampler):
    """Rows every second, keyed as the host sampler keys threads.

    `gil_sweeps` (key `*`) counts sweeps, `gil_wait_samples` those in which a thread waited; both are totals.
    """

    name = "gil_wait"
    metrics = ("gil_wait_samples", "gil_sweeps")
    interval_s = 1.0 / rate_hz
    jitter_share = 1.0  # a sweep anywhere within its slot: the GIL changes hands periodically

    def __init__(
        self,
        find_gil: Callable[[], object],
        root_pid: int,
        cpu_clock: Callable[[], float] = time.thread_time,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """`find_gil`: key `gil` of run.json, None until it is there; its process must be below `root_pid`."""
        self._find_gil, self._root_pid = find_gil, root_pid
        self._cpu_clock, self._clock, self._jitter = cpu_clock, clock, jitter
        self._searches = 0
        self._pid: int | None = None  # of the process that published; None: not found yet
        self._words: frozenset[bytes] = frozenset()
        self._threads: dict[int, _Thread] = {}
        self._sweeps = 0
        self._spent_s, self._debt_s = 0.0, 0.0  # CPU time of all, and what of it the time does not allow
        self._at_s = 0.0
        self._next_rows_s = 0.0
        self._given_up = False

    def open(self) -> str | None:
        if not Path("/proc/self/syscall").exists():
            return no_proc
        ctypes.CDLL(None).prctl(pr_set_timerslack, 1, 0, 0, 0)
        self.warning = unpublished
        self._spent_s, self._at_s = self._cpu_clock(), self._clock()
        return None

    def sample(self) -> Iterator[Reading]:
        if self._given_up:
            self.rest_s = retry_s
            return
        now_s = self._clock()
        known = bool(self._threads)
        if known:  # before all else: a thread that wakes while this one has the CPU seems to run
            yield from self._sweep()
        if now_s >= self._next_rows_s:
            self._next_rows_s = now_s + rows_every_s
            yield from self._find_process() if self._pid is None else self._rows()
            yield from self._find_threads()
            if self._threads and not known:
                yield from self._sweep()
        self.rest_s = self._repay(now_s) if self._threads else rows_every_s

    def close(self) -> Iterator[Reading]:
        if self._given_up:
            return
        if self._pid is not None:
            yield from self._rows()
        elif self.warning is not None:
            yield from self._give_up(self.warning)
        self._pid, self._given_up = None, True
        self._drop_threads()

    def _repay(self, now_s: float) -> float:
        """How long to rest: to wake and find that one may not look costs nearly as much as looking."""
        spent_s = self._cpu_clock()
        allowed_s = cost_share * (now_s - self._at_s)
        self._debt_s = max(0.0, self._debt_s + spent_s - self._spent_s - allowed_s)
        self._spent_s, self._at_s = spent_s, now_s
        return max(0.0, self._debt_s / cost_share - self.interval_s)

    def _find_process(self) -> Iterator[Reading]:
        self._searches += 1
        gil = self._find_gil()
        if gil is None:
            if self._searches & (self._searches - 1) == 0:  # a scan of /proc, so ever more seldom
                below = descendants(self._root_pid)
                self.warning = unpublished if any(map(_is_python, below)) or not below else no_python
            return
        try:
            pid, self._words = _understand(gil)
        except ValueError as problem:
            yield from self._give_up(str(problem))
            return
        if pid not in descendants(self._root_pid):  # another pid namespace: that number is somebody else here
            yield from self._give_up(foreign)
            return
        self._pid, self.warning = pid, None

    def _find_threads(self) -> Iterator[Reading]:
        if self._pid is None:
            return
        task = Path(f"/proc/{self._pid}/task")
        try:
            new = [tid for tid in map(int, os.listdir(task)) if tid not in self._threads]  # noqa: PTH208 - cheap
        except (FileNotFoundError, ProcessLookupError):
            return  # it has ended
        room = most_threads - len(self._threads)
        if len(new) > room:
            self.warning = f"{len(new) - room} threads beyond the first {most_threads} are not looked at"
        for tid in sorted(new)[:room]:
            try:
                key = f"{tid}:{(task / str(tid) / 'comm').read_text(errors='replace').strip()}"
                file = os.open(task / str(tid) / "syscall", os.O_RDONLY)
            except (FileNotFoundError, ProcessLookupError):
                continue  # so has the thread
            except PermissionError:
                yield from self._give_up(why_forbidden(self._pid))
                return
            self._threads[tid] = _Thread(tid, key, file, self._sweeps, self._sweeps)
            yield Reading(time.monotonic_ns(), key, "gil_wait_samples", 0)

    def _sweep(self) -> Iterator[Reading]:
        self._sweeps += 1
        due = [thread for thread in self._threads.values() if thread.next_sweep <= self._sweeps]
        looks = [_look(thread.file) for thread in due]  # all at once, for the same reason
        gone = []
        for thread, found in zip(due, looks, strict=True):
            if isinstance(found, bytes):
                self._count(thread, found)
            elif isinstance(found, PermissionError):
                assert self._pid is not None
                yield from self._give_up(why_forbidden(self._pid))
                return
            else:
                gone.append(thread)
        for thread in gone:
            del self._threads[thread.tid]
            os.close(thread.file)
            t_ns = time.monotonic_ns()
            yield Reading(t_ns, thread.key, "gil_wait_samples", thread.waits)
            yield Reading(t_ns, thread.key, "gil_wait_samples", None, ended)

    def _count(self, thread: _Thread, found: bytes) -> None:
        if found != thread.seen:
            fields = found.split(b" ", 2)
            thread.waits_now = len(fields) > 1 and fields[1] in self._words
            thread.seen, thread.same = found, 0
        elif not thread.waits_now and found[:1] != b"r":
            thread.same += 1
        if thread.waits_now:
            thread.waits += self._sweeps - thread.last_sweep
        thread.last_sweep = self._sweeps
        thread.next_sweep = self._sweeps + self._stride(thread.same)

    def _stride(self, same: int) -> int:
        """Sweeps to the next look; uneven, lest looks beat against what a thread does periodically."""
        for looks, stride in strides:
            if same >= looks:
                return round(stride * (0.5 + self._jitter()))
        return 1

    def _rows(self) -> Iterator[Reading]:
        t_ns = time.monotonic_ns()
        yield Reading(t_ns, everything, "gil_sweeps", self._sweeps)
        for thread in self._threads.values():
            if thread.waits != thread.written:
                thread.written = thread.waits
                yield Reading(t_ns, thread.key, "gil_wait_samples", thread.waits)

    def _give_up(self, reason: str) -> Iterator[Reading]:
        self._given_up, self.warning = True, reason
        self._drop_threads()
        for metric in self.metrics:
            yield Reading(time.monotonic_ns(), everything, metric, None, reason)

    def _drop_threads(self) -> None:
        for thread in self._threads.values():
            os.close(thread.file)
        self._threads.clear()


def _look(file: int) -> bytes | OSError:
    """`running`, or number, arguments and stack pointer of the system call a thread is in; or why not."""
    try:
        return os.pread(file, _look_bytes, 0)
    except (ProcessLookupError, FileNotFoundError, PermissionError) as error:
        return error


def _understand(gil: object) -> tuple[int, frozenset[bytes]]:
    """Process and futex words, as /proc writes them, of key `gil`. Raises ValueError: why there are none."""
    if not isinstance(gil, Mapping):
        raise ValueError(unsound)
    if gil.get("reason"):
        raise ValueError(str(gil["reason"]))
    pid, low, high = (gil.get(key) for key in ("pid", "futex_low", "futex_high"))
    if not (isinstance(pid, int) and isinstance(low, int) and isinstance(high, int)):
        raise ValueError(unsound)
    if not 0 < high - low <= _most_range_bytes:
        raise ValueError(unsound)
    return pid, frozenset(hex(word).encode() for word in range(low, high, 4))


def why_forbidden(pid: int) -> str:
    """Which of the things that forbid to look at a process is it, and what to do."""
    try:
        if Path(f"/proc/{pid}").stat().st_uid != os.geteuid():
            return other_user
        scope = int(Path("/proc/sys/kernel/yama/ptrace_scope").read_text())
    except (OSError, ValueError):
        scope = 0
    return yama.format(scope=scope) if scope else no_ptrace


def _is_python(pid: int) -> bool:
    try:
        return "python" in os.readlink(f"/proc/{pid}/exe")  # noqa: PTH115 - not followed, only read
    except OSError:
        return False
