"""Where the threads of this Python wait for the GIL: learned by watching one wait, and published in the run.

A sampler outside the process can then tell from /proc which threads wait. On CPython with glibc a waiter
sleeps in a futex inside the condition variable of the GIL; its two futex words take turns, so the range of
the whole condition is published. Learning takes about 20 ms, in which the calling thread holds the GIL for a
millisecond at a time. Knows nothing of samplers.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
import sysconfig
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dflash.contract.rundir import RunDir, environment_variable

condition_bytes = 48  # glibc's pthread_cond_t; its two futex words lie next to each other inside it
_word_bytes = 4
_syscall_file = "/proc/self/task/{tid}/syscall"
_hold_us = 1000  # shorter than the switch interval, so that the waiter's wait does not time out
_most_waits = 150  # looked at
_patience_s = 2.0  # a crowded machine may not let the waiter run for a while
_enough = 8  # waits seen at the two words
_sure_share = 0.75  # of all that was seen
_pr_set_ptracer = 0x59616D61  # linux/prctl.h

no_gil = "free-threaded Python: there is no GIL to wait for"
other_python = "only CPython's GIL is known here, not that of {name}"
other_libc = "the C library is not glibc: its condition variables wait elsewhere"
no_proc = "the kernel or the sandbox shows no /proc/PID/task/TID/syscall"
not_seen = "learning failed: a thread that waits for the GIL was not seen at one place ({seen})"
not_alone = "learning failed: a thread that waits for a lock was seen at the place of the GIL too"


class _UnknownError(Exception):
    """The range cannot be had; the text says why."""


def publish_gil_range(run: RunDir) -> str | None:
    """Write key `gil` into the manifest of `run`; returns why the range is unknown, or None when it is known.

    Under a recorder it is also let look at this process, where the kernel asks for that (Yama). Call it once,
    early, from any thread; it costs about 20 ms. Raises RunError when the manifest cannot be written.
    """
    described = describe_gil()
    run.update(gil=described)
    if os.environ.get(environment_variable):
        _admit(run.manifest()["pids"].get("recorder"))
    reason: str | None = described.get("reason")
    return reason


def describe_gil() -> dict[str, Any]:
    """The entry for run.json: `pid`, `python`, `switch_interval_s`, and the range or the `reason` why not."""
    known = {
        "pid": os.getpid(),
        "python": platform.python_version(),
        "switch_interval_s": sys.getswitchinterval(),
    }
    try:
        low, high = learn_gil_range()
    except _UnknownError as error:
        return {**known, "reason": str(error)}
    return {**known, "futex_low": low, "futex_high": high}


def learn_gil_range() -> tuple[int, int]:
    """First address and end of the GIL's condition variable in this process."""
    _check_possible()
    with _Waiter() as waiter:
        _, last_word = _see_waits(waiter)
        low, high = last_word + _word_bytes - condition_bytes, last_word + _word_bytes
        waiter.park()
        if not _is_alone(waiter, low, high):
            raise _UnknownError(not_alone)
    return low, high


def _check_possible() -> None:
    if platform.python_implementation() != "CPython":
        raise _UnknownError(other_python.format(name=platform.python_implementation()))
    is_enabled = getattr(sys, "_is_gil_enabled", lambda: True)
    if sysconfig.get_config_var("Py_GIL_DISABLED") and not is_enabled():
        raise _UnknownError(no_gil)
    if not _is_glibc():
        raise _UnknownError(other_libc)


def _is_glibc() -> bool:
    try:
        return bool(os.confstr("CS_GNU_LIBC_VERSION"))
    except (ValueError, OSError):  # the name, or its value, is not known here
        return False


def _see_waits(waiter: _Waiter) -> tuple[int, int]:
    """Both futex words of the condition: neighbours at which nearly all waits were seen."""
    seen: Counter[int] = Counter()
    until_s = time.monotonic() + _patience_s
    while seen.total() < _most_waits and time.monotonic() < until_s:
        seen.update(waiter.look(1))
        for word in seen:
            waits = seen[word] + seen[word + _word_bytes]
            both = seen[word] and seen[word + _word_bytes]
            if both and waits >= max(_enough, _sure_share * seen.total()):
                return word, word + _word_bytes
        time.sleep(0)  # lets the waiter have the GIL, and wait for it again
    raise _UnknownError(not_seen.format(seen=f"{seen.total()} waits at {len(seen)} addresses"))


def _is_alone(waiter: _Waiter, low: int, high: int) -> bool:
    """Whether a thread that waits for a lock is elsewhere. On its way there it may want the GIL once more."""
    for _ in range(20):
        if not any(low <= word < high for word in waiter.look(5)):
            return True
        time.sleep(0.001)
    return False


class _Waiter:
    """A thread that wants the GIL all the time, and a way to look at it while this thread holds the GIL."""

    def __init__(self) -> None:
        self._parking, self._release = threading.Event(), threading.Event()
        self._started, self._parked = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="gil-waiter", daemon=True)
        # PyDLL, unlike CDLL, keeps the GIL during the call.
        self._libc = ctypes.PyDLL(None, use_errno=True)
        self._libc.pread.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_long]
        self._buffer = ctypes.create_string_buffer(256)

    def __enter__(self) -> _Waiter:
        self._thread.start()
        self._started.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._parking.set()
        self._release.set()
        self._thread.join()

    def _run(self) -> None:
        self._started.set()
        while not self._parking.is_set():
            time.sleep(0)  # gives the GIL up, and asks for it again
        self._parked.set()
        self._release.wait()

    def park(self) -> None:
        """From here on the thread waits for a lock instead."""
        self._parking.set()
        self._parked.wait()

    def look(self, times: int) -> list[int]:
        """The addresses that the thread waited at, each seen after the GIL was held for a while."""
        found = []
        with self._syscall_of_thread() as file:
            for _ in range(times):
                self._libc.usleep(_hold_us)
                size = self._libc.pread(file, self._buffer, len(self._buffer) - 1, 0)
                words = self._buffer.raw[: max(size, 0)].split()
                if len(words) > 2:  # not "running", and inside a system call
                    found.append(int(words[1], 16))
        return found

    @contextmanager
    def _syscall_of_thread(self) -> Iterator[int]:
        try:
            file = os.open(_syscall_file.format(tid=self._thread.native_id), os.O_RDONLY)
        except OSError:
            raise _UnknownError(no_proc) from None
        try:
            yield file
        finally:
            os.close(file)


def _admit(recorder_pid: object) -> None:
    """Let the recorder, and what it starts, look at this process. Without Yama there is nothing to allow."""
    if isinstance(recorder_pid, int):
        ctypes.CDLL(None).prctl(_pr_set_ptracer, ctypes.c_ulong(recorder_pid), 0, 0, 0)
