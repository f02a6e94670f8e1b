"""Who waits for the GIL, looked at from outside: true shares of a real program, and why there are none."""

from __future__ import annotations

import itertools
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from profiler.launcher import descendants
from profiler.samplers import gil_wait
from profiler.samplers.base import Reading
from profiler.samplers.gil_wait import GilWaitSampler

# `holder` keeps the GIL for half of the time inside C, `waiter` wants it all the time, `sleeper` only to fall
# asleep and, once it is told to on stdin, to end.
program = """
import ctypes, json, os, threading, time
from dflash.contract.gil_range import describe_gil
libc = ctypes.PyDLL(None)
def hold():
    while True:
        libc.usleep(10_000)
        time.sleep(0.01)
def wait():
    while True:
        time.sleep(0.0002)
def sleep():
    os.read(0, 1)
gil = describe_gil()
threads = [threading.Thread(target=run, daemon=True) for run in (hold, wait, sleep)]
for thread in threads: thread.start()
gil["threads"] = [thread.native_id for thread in threads]
print(json.dumps(gil), flush=True)
threads[2].join()
"""


@contextmanager
def running(code: str = program) -> Iterator[dict[str, Any]]:
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with child:
        assert child.stdout is not None
        try:
            yield {**json.loads(child.stdout.readline() or "{}"), "stdin": child.stdin}
        finally:
            child.kill()


def make(gil: object) -> GilWaitSampler:
    """A sampler that never saves on sweeps."""
    return GilWaitSampler(lambda: gil, os.getpid(), cpu_clock=lambda: 0.0)


def watch(sampler: GilWaitSampler, sweeps: int) -> list[Reading]:
    """What so many sweeps at odd moments give, with the last word."""
    assert sampler.open() is None
    return [*sweep(sampler, sweeps), *sampler.close()]


def sweep(sampler: GilWaitSampler, sweeps: int) -> list[Reading]:
    rows: list[Reading] = []
    for i in range(sweeps):
        rows += sampler.sample()
        time.sleep(0.003 + 0.0007 * (i % 10))
    return rows


def watch_the_end(gil: dict[str, Any], enough: Callable[[list[Reading]], bool]) -> list[Reading]:
    """What 100 sweeps give and, once the sleeper has been told to end, those until that is `enough`."""
    sampler = make(gil)
    assert sampler.open() is None
    rows = sweep(sampler, 100)
    gil["stdin"].write(b"\n")
    gil["stdin"].flush()
    deadline = time.monotonic() + 30
    while not enough(rows):
        assert time.monotonic() < deadline, rows
        rows += sweep(sampler, 10)
    assert sampler.warning is None
    return [*rows, *sampler.close()]


def ends(rows: list[Reading], tids: list[int]) -> bool:
    """Whether all these threads are said to have ended."""
    return {f"{tid}" for tid in tids} <= {r.key.split(":")[0] for r in rows if r.reason == gil_wait.ended}


def last(rows: list[Reading], metric: str, key_start: str) -> float:
    return [r.value for r in rows if r.metric == metric and r.key.startswith(key_start)][-1] or 0.0


def shares(gil: dict[str, Any], sweeps: int = 500) -> list[float]:
    rows = watch(make(gil), sweeps)
    total = last(rows, "gil_sweeps", "*")
    assert total > 0.9 * sweeps
    return [last(rows, "gil_wait_samples", f"{tid}:") / total for tid in gil["threads"]]


def test_shares_of_a_real_program() -> None:
    with running() as gil:
        holder, waiter, sleeper = shares(gil)
    # By construction .5 for the waiter and next to nothing for the others; a crowded machine adds a little.
    assert 0.3 < waiter < 0.7
    assert holder < 0.25
    assert sleeper < 0.05  # it may wait once, to fall asleep


def test_a_range_beside_the_gil_sees_no_waits() -> None:
    with running() as gil:
        shifted = {**gil, "futex_low": gil["futex_high"] + 16, "futex_high": gil["futex_high"] + 64}
        assert max(shares(shifted, 100)) == 0


def test_every_thread_starts_at_zero_and_is_keyed_like_in_the_host_sampler() -> None:
    with running() as gil:
        rows = watch(make(gil), 5)
        comm = Path(f"/proc/{gil['pid']}/comm").read_text().strip()
    first = {r.key: r.value for r in reversed(rows) if r.metric == "gil_wait_samples"}
    assert first == {f"{tid}:{comm}": 0 for tid in [gil["pid"], *gil["threads"]]}


def test_an_ended_thread_says_so_and_a_new_one_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gil_wait, "rows_every_s", 0.0)
    with running(f"{program}threading.Thread(target=time.sleep, args=[1000]).start()") as gil:
        *_, sleeper_tid = tids = gil["threads"]
        known = {"*", *map(str, (gil["pid"], *tids))}
        rows = watch_the_end(
            gil, lambda rows: ends(rows, [sleeper_tid]) and not known >= {r.key.split(":")[0] for r in rows}
        )
    sleeper = [r for r in rows if r.key.startswith(f"{sleeper_tid}:")]
    assert (sleeper[-1].value, sleeper[-1].reason) == (None, gil_wait.ended)
    # To end it wants the GIL some times, and gets it within 10 ms each; the waiter wants it all the time.
    assert sleeper[-2].value is not None
    assert sleeper[-2].value < last(rows, "gil_wait_samples", f"{gil['threads'][1]}:") / 3


def test_a_program_that_ends_is_no_complaint() -> None:
    with running() as gil:
        rows = watch_the_end(gil, lambda rows: ends(rows, gil["threads"]))
    assert {r.reason for r in rows} == {None, gil_wait.ended}


def reasons(sampler: GilWaitSampler) -> set[tuple[str, str, float | None, str | None]]:
    return {(r.key, r.metric, r.value, r.reason) for r in watch(sampler, 3)}


def missing(reason: str) -> set[tuple[str, str, None, str]]:
    return {("*", metric, None, reason) for metric in GilWaitSampler.metrics}


def test_python_that_published_nothing() -> None:
    with running("print('{}', flush=True); input()"):
        assert reasons(make(None)) == missing(gil_wait.unpublished)


def is_sleep(pid: int) -> bool:
    return Path(f"/proc/{pid}/comm").read_text() == "sleep\n"


def test_what_is_no_python() -> None:
    # Below a shell of its own: the test process may have Python children from other tests.
    with subprocess.Popen(["sh", "-c", "sleep 60; true"], start_new_session=True) as shell:
        try:
            while not any(map(is_sleep, descendants(shell.pid))):
                time.sleep(0.01)
            sampler = GilWaitSampler(lambda: None, shell.pid)
            assert reasons(sampler) == missing(gil_wait.no_python)
        finally:
            os.killpg(shell.pid, signal.SIGKILL)


def test_the_reason_of_the_program_is_passed_on() -> None:
    assert reasons(make({"pid": os.getpid(), "reason": "free-threaded"})) == missing("free-threaded")


good = {"pid": 1, "futex_low": 2**40, "futex_high": 2**40 + 48}


@pytest.mark.parametrize(
    "odd",
    ["text", 7, [], {}, {**good, "pid": "1"}, {**good, "futex_high": 2**41}, {**good, "futex_low": 2**41}],
)
def test_what_is_no_range_is_refused(odd: object) -> None:
    assert reasons(make(odd)) == missing(gil_wait.unsound)


def test_a_process_elsewhere_is_not_read() -> None:
    with running() as gil, subprocess.Popen(["sleep", "60"]) as other:
        sampler = GilWaitSampler(lambda: gil, other.pid)
        assert reasons(sampler) == missing(gil_wait.foreign)
        other.kill()


def test_being_forbidden_to_look_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbid(file: int, size: int, at: int) -> bytes:
        raise PermissionError

    monkeypatch.setattr(gil_wait, "why_forbidden", lambda pid: gil_wait.no_ptrace)
    with running() as gil:
        monkeypatch.setattr(os, "pread", forbid)
        sampler = make(gil)
        rows = watch(sampler, 3)
    assert sampler.warning == gil_wait.no_ptrace
    assert [(r.metric, r.reason) for r in rows[-2:]] == [(m, gil_wait.no_ptrace) for m in sampler.metrics]


def test_the_causes_of_being_forbidden_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_text", lambda self: "2\n")
    assert gil_wait.why_forbidden(os.getpid()) == gil_wait.yama.format(scope=2)
    monkeypatch.setattr(Path, "read_text", lambda self: "0\n")
    assert gil_wait.why_forbidden(os.getpid()) == gil_wait.no_ptrace
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert gil_wait.why_forbidden(os.getpid()) == gil_wait.other_user


def test_a_kernel_that_does_not_show_system_calls_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "exists", lambda self: False)
    assert make(None).open() == gil_wait.no_proc


def test_reasons_are_distinct() -> None:
    texts = [gil_wait.unpublished, gil_wait.no_python, gil_wait.no_proc, gil_wait.unsound, gil_wait.foreign]
    texts += [gil_wait.other_user, gil_wait.yama, gil_wait.no_ptrace, gil_wait.ended]
    assert len(set(texts)) == len(texts)


class Texts:
    """Stands in for /proc: what each look finds, by open file."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = b"running\n"
        self.looks = 0
        monkeypatch.setattr(os, "pread", self.read)

    def read(self, file: int, size: int, at: int) -> bytes:
        self.looks += 1
        return self.now


asleep = b"202 0x7f0000000000 0x189 0x0 0x0 0x0 0xffffffff 0x7f1 0x7f2\n"
waiting = b"202 0x10000000028 0x189 0x0 0x0 0x0 0xffffffff 0x7f1 0x7f2\n"


@pytest.fixture
def one_thread() -> Iterator[int]:
    with subprocess.Popen(["sleep", "60"]) as child:
        yield child.pid
        child.kill()


@pytest.mark.parametrize(("looks", "stride"), gil_wait.strides)
def test_a_look_at_a_sleeping_thread_stands_for_all_sweeps_since_the_last(
    looks: int, stride: int, monkeypatch: pytest.MonkeyPatch, one_thread: int
) -> None:
    texts = Texts(monkeypatch)
    sampler = GilWaitSampler(
        lambda: {**good, "pid": one_thread}, os.getpid(), cpu_clock=lambda: 0.0, jitter=lambda: 0.5
    )
    assert sampler.open() is None
    texts.now = asleep
    while texts.looks < looks + 1:  # the first look only learns where it sleeps
        list(sampler.sample())
    for _ in range(2 * stride):
        list(sampler.sample())
    assert texts.looks == looks + 3
    texts.now = waiting
    for _ in range(stride):  # it is noticed by the next look
        list(sampler.sample())
    assert texts.looks == looks + 4
    for _ in range(10):  # and from then on looked at in every sweep
        list(sampler.sample())
    assert texts.looks == looks + 14
    rows = list(sampler.close())
    assert last(rows, "gil_wait_samples", str(one_thread)) == stride + 10


def test_looks_at_sleepers_do_not_beat_and_none_waits_longer_than_a_second(
    monkeypatch: pytest.MonkeyPatch, one_thread: int
) -> None:
    texts, sampler = Texts(monkeypatch), make({**good, "pid": one_thread})
    assert sampler.open() is None
    texts.now = asleep
    looked_at = []
    for sweep in range(5000):
        before = texts.looks
        list(sampler.sample())
        looked_at += [sweep] * (texts.looks - before)
    gaps = {after - before for before, after in itertools.pairwise(looked_at[60:])}
    assert len(gaps) > 5
    assert max(gaps) * GilWaitSampler.interval_s < 1.0


@pytest.mark.parametrize("text", [b"running\n", waiting])
def test_who_runs_or_waits_is_looked_at_in_every_sweep(
    text: bytes, monkeypatch: pytest.MonkeyPatch, one_thread: int
) -> None:
    texts, sampler = Texts(monkeypatch), make({**good, "pid": one_thread})
    assert sampler.open() is None
    texts.now = text
    for _ in range(100):
        list(sampler.sample())
    sampler.close()
    assert texts.looks == 100


class Clocks:
    """Time and CPU time of a sampling thread that is paced as `SamplerThread` does it."""

    def __init__(self, sampler_of: Callable[[Clocks], GilWaitSampler]) -> None:
        self.now_s, self.cpu_s, self.ticks = 0.0, 0.0, 0
        self.sampler = sampler_of(self)
        assert self.sampler.open() is None

    def play(self, seconds: float, tick_cpu_s: float = 0.0) -> list[Reading]:
        rows: list[Reading] = []
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.ticks += 1
            self.cpu_s += tick_cpu_s
            rows += self.sampler.sample()
            interval_s = self.sampler.interval_s
            self.now_s += interval_s * (1 + math.ceil(self.sampler.rest_s / interval_s))
        return rows


def test_sweeps_become_rarer_where_they_would_cost_too_much(
    monkeypatch: pytest.MonkeyPatch, one_thread: int
) -> None:
    def make_sampler(clocks: Clocks) -> GilWaitSampler:
        def read(file: int, size: int, at: int) -> bytes:
            clocks.cpu_s += 10 * gil_wait.cost_share * GilWaitSampler.interval_s
            return b"running\n"

        monkeypatch.setattr(os, "pread", read)
        return GilWaitSampler(
            lambda: {**good, "pid": one_thread},
            os.getpid(),
            cpu_clock=lambda: clocks.cpu_s,
            clock=lambda: clocks.now_s,
        )

    clocks = Clocks(make_sampler)
    clocks.play(20.0)
    assert clocks.cpu_s <= 1.02 * gil_wait.cost_share * clocks.now_s
    sweeps = last(list(clocks.sampler.close()), "gil_sweeps", "*")
    assert sweeps > 90
    assert clocks.ticks == sweeps  # it is not woken for nothing


@pytest.mark.parametrize(("gil", "ticks"), [(None, 61), ({"pid": 1, "reason": "free-threaded"}, 4)])
def test_with_nothing_to_look_at_it_is_hardly_woken(gil: object, ticks: int) -> None:
    clocks = Clocks(lambda made: GilWaitSampler(lambda: gil, os.getpid(), clock=lambda: made.now_s))
    clocks.play(60.0)
    assert clocks.ticks <= ticks
