"""Where this Python's threads wait for the GIL: learned the same every time, and why not where it fails."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import sysconfig
import threading
import time
from pathlib import Path

import pytest

from dflash.contract import gil_range
from dflash.contract.gil_range import describe_gil, learn_gil_range, publish_gil_range
from dflash.contract.rundir import create_run


def test_the_range_is_found_and_is_the_same_every_time() -> None:
    ranges = {learn_gil_range() for _ in range(20)}
    assert len(ranges) == 1
    low, high = ranges.pop()
    assert high - low == gil_range.condition_bytes


def test_a_thread_is_inside_while_it_wants_the_gil_and_outside_while_it_sleeps() -> None:
    low, high = learn_gil_range()
    libc = ctypes.PyDLL(None)  # keeps the GIL during calls
    stop = threading.Event()

    def run(pause_s: float) -> None:
        while not stop.is_set():
            time.sleep(pause_s)

    buffer = ctypes.create_string_buffer(256)

    def look(thread: threading.Thread) -> str:
        with Path(f"/proc/self/task/{thread.native_id}/syscall").open("rb", buffering=0) as file:
            libc.usleep(2000)
            libc.pread(file.fileno(), buffer, 255, ctypes.c_long(0))
        words = buffer.value.split()
        if len(words) <= 3:  # "running", or in no system call
            return "running"
        return "inside" if low <= int(words[1], 16) < high else "outside"

    def look_until(thread: threading.Thread, place: str) -> None:
        deadline = time.monotonic() + 30
        while look(thread) != place:  # a crowded machine may not have let it come so far
            assert time.monotonic() < deadline
            time.sleep(0.001)

    wanting, sleeping = (
        threading.Thread(target=run, args=(pause_s,), daemon=True) for pause_s in (0.0, 1000.0)
    )
    wanting.start()
    for _ in range(10):
        look_until(wanting, "inside")
    stop.set()
    wanting.join(30)
    stop.clear()
    sleeping.start()
    for _ in range(3):
        look_until(sleeping, "outside")
    assert {look(sleeping) for _ in range(20)} == {"outside"}
    stop.set()


def test_it_is_published_in_the_run(tmp_path: Path) -> None:
    run = create_run(tmp_path / "run", command=["x"])
    assert publish_gil_range(run) is None
    gil = run.manifest()["gil"]
    assert gil["futex_high"] - gil["futex_low"] == gil_range.condition_bytes
    assert gil["pid"] == os.getpid()
    assert gil["switch_interval_s"] == sys.getswitchinterval()
    assert gil["python"].count(".") == 2


def test_a_reason_is_published_where_there_is_no_range(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gil_range, "_is_glibc", lambda: False)
    run = create_run(tmp_path / "run", command=["x"])
    assert publish_gil_range(run) == gil_range.other_libc
    assert run.manifest()["gil"]["reason"] == gil_range.other_libc
    assert "futex_low" not in run.manifest()["gil"]


def test_free_threaded_python_has_no_gil_to_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysconfig, "get_config_var", lambda name: 1 if name == "Py_GIL_DISABLED" else None)
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    assert describe_gil()["reason"] == gil_range.no_gil


def test_another_python_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.python_implementation", lambda: "PyPy")
    assert "PyPy" in describe_gil()["reason"]


def test_a_kernel_that_does_not_show_system_calls_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gil_range, "_syscall_file", "/proc/self/task/{tid}/no such file")
    assert describe_gil()["reason"] == gil_range.no_proc


def test_waits_at_many_places_are_not_taken_for_the_gil(monkeypatch: pytest.MonkeyPatch) -> None:
    places = iter(range(2**40, 2**41, 4096))
    monkeypatch.setattr(gil_range._Waiter, "look", lambda self, times: [next(places)])
    monkeypatch.setattr(gil_range, "_most_waits", 20)
    assert describe_gil()["reason"] == gil_range.not_seen.format(seen="20 waits at 20 addresses")


def test_a_place_where_locks_are_waited_for_too_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    words = iter([2**40, 2**40 + 4] * 4)
    monkeypatch.setattr(
        gil_range._Waiter, "look", lambda self, times: [next(words)] if times == 1 else [2**40]
    )
    assert describe_gil()["reason"] == gil_range.not_alone


def test_a_waiter_that_gets_no_cpu_for_a_while_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    look, looks = gil_range._Waiter.look, iter([[]] * 500)
    monkeypatch.setattr(gil_range._Waiter, "look", lambda self, times: next(looks, None) or look(self, times))
    monkeypatch.setattr(gil_range, "_hold_us", 100)
    assert "reason" not in describe_gil()


def test_a_waiter_on_its_way_to_a_lock_may_want_the_gil_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    words, parked = iter([2**40, 2**40 + 4] * 4), iter([[2**40]] * 3)
    monkeypatch.setattr(
        gil_range._Waiter, "look", lambda self, times: [next(words)] if times == 1 else next(parked, [])
    )
    assert "reason" not in describe_gil()


def test_the_thread_that_waited_is_gone_afterwards() -> None:
    before = set(threading.enumerate())
    describe_gil()
    assert set(threading.enumerate()) <= before


def test_under_a_recorder_it_may_look_and_without_one_nothing_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    admitted: list[object] = []
    monkeypatch.setattr(gil_range, "_admit", admitted.append)
    run = create_run(tmp_path / "run", command=["x"])
    run.update(pids={"recorder": 77, "trainer": None})
    publish_gil_range(run)
    assert admitted == []
    monkeypatch.setenv("DFLASH_RUN_DIR", str(run.path))
    publish_gil_range(run)
    assert admitted == [77]


def test_learning_needs_nothing_but_the_standard_library() -> None:
    code = (
        "import json, sys\n"
        "from dflash.contract.gil_range import describe_gil\n"
        "print(json.dumps([describe_gil(), 'torch' in sys.modules, 'pyarrow' in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    gil, *heavy = json.loads(done.stdout)
    assert "futex_low" in gil
    assert heavy == [False, False]
