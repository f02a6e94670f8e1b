"""GIL sampling through py-spy: shares when it works, and a reason of its own for each way it fails."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from profiler.samplers import gil
from profiler.samplers.base import Reading
from profiler.samplers.gil import GilSampler, by_thread, parse_stacks

totals = "echo 'py-spy> Wrote raw flamegraph data. Samples: 25 Errors: 0'"


def stub(folder: Path, body: str) -> Path:
    """A py-spy of our own; $out is where the stacks go."""
    program = folder / "py-spy"
    program.write_text(f'#!/bin/sh\nfor last; do out="$last"; done\n{body}\n')
    program.chmod(0o755)
    return program


def readings_until(sampler: GilSampler, enough: Callable[[list[Reading]], bool]) -> list[Reading]:
    rows: list[Reading] = []
    deadline = time.monotonic() + 30
    while not enough(rows):
        assert time.monotonic() < deadline, rows
        rows += sampler.sample()
        time.sleep(0.01)
    rows += sampler.close()
    return rows


def outcome_of(program: Path) -> tuple[str | None, list[Reading]]:
    """The reason for having no shares, and all readings, of one segment with a stub."""
    sampler = GilSampler(lambda: 1, program, length_s=1)
    reason = sampler.open()
    if reason is not None:
        return reason, []
    rows = readings_until(sampler, lambda rows: len(rows) >= 2)
    return sampler.warning, rows


def test_shares_are_samples_of_a_holder_among_all(tmp_path: Path) -> None:
    stacks = (
        "thread (11): target:0;run (a.py:1) 10\\nthread (11): target:0;run (a.py:2) 2\\n"
        "thread (12): x y;f 8\\n"
    )
    _, rows = outcome_of(stub(tmp_path, f"printf '{stacks}' > $out; {totals}"))
    first = {(r.key, r.metric): r.value for r in rows[:4]}
    assert first == {
        ("*", "gil_samples"): 25,
        ("*", "gil_held_share"): 0.8,
        ("target:0", "gil_hold_share"): 0.48,
        ("x y", "gil_hold_share"): 0.32,
    }


def test_holder_of_before_reads_zero_when_others_hold(tmp_path: Path) -> None:
    first, second = "thread (1): a;f 10", "thread (2): b;f 10"
    body = f"if [ -e {tmp_path}/on ]; then echo '{second}' > $out; else echo '{first}' > $out; fi"
    sampler = GilSampler(lambda: 1, stub(tmp_path, f"{body}; touch {tmp_path}/on; {totals}"), length_s=1)
    rows = readings_until(sampler, lambda rows: any(r.key == "b" for r in rows))
    assert [r.value for r in rows if r.key == "a"][:2] == [0.4, 0.0]


def test_without_any_holder_ever_the_share_is_unknown_not_zero(tmp_path: Path) -> None:
    warning, rows = outcome_of(stub(tmp_path, f": > $out; {totals}"))
    held = next(r for r in rows if r.metric == "gil_held_share")
    assert (held.value, held.reason) == (None, gil.no_holder)
    assert warning == gil.no_holder


failures = {
    "no permission": ("echo 'Permission Denied: Try running again' >&2; exit 1", gil.no_permission),
    "version": ("echo 'Error: Unsupported version of Python: 3.99.0' >&2; exit 1", gil.no_version),
    "garbage": (f"echo 'what is this' > $out; {totals}", gil.no_sense),
    "no output": (totals, gil.no_sense),
    "no totals": (": > $out", gil.no_sense),
    "crash": ("echo 'Error: out of cheese' >&2; exit 3", "py-spy failed: Error: out of cheese"),
    "silent crash": ("kill -11 $$", "py-spy failed: exit code -11"),
}


@pytest.mark.parametrize("name", failures)
def test_each_failure_has_its_own_reason(tmp_path: Path, name: str) -> None:
    body, expected = failures[name]
    warning, rows = outcome_of(stub(tmp_path, body))
    assert warning == expected
    assert {(r.metric, r.value, r.reason) for r in rows} == {(m, None, expected) for m in GilSampler.metrics}


def test_absent_program_is_a_reason(tmp_path: Path) -> None:
    assert outcome_of(tmp_path / "none")[0] == gil.no_program


def test_reasons_are_distinct() -> None:
    reasons = [gil.no_program, gil.no_permission, gil.no_version, gil.no_python, gil.no_answer, gil.no_sense]
    assert len(set(reasons)) == len(reasons)


def test_program_that_hangs_is_ended_with_what_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids = tmp_path / "pids"
    body = f"sleep 120 & echo $! $$ > {pids}.new; mv {pids}.new {pids}; wait"
    sampler = GilSampler(lambda: 1, stub(tmp_path, body), length_s=1)
    assert sampler.open() is None
    deadline = time.monotonic() + 30
    while not pids.exists():
        assert list(sampler.sample()) == []
        assert time.monotonic() < deadline
        time.sleep(0.01)
    monkeypatch.setattr(gil, "hang_limit_s", -1.0)  # its time is over
    assert {row.reason for row in sampler.sample()} == {gil.no_answer}
    assert sampler.warning == gil.no_answer
    assert not any(map(psutil.pid_exists, map(int, pids.read_text().split())))


def test_command_that_never_becomes_python_is_given_up(tmp_path: Path) -> None:
    said = "Error: Failed to find python version from target process"
    program = stub(tmp_path, f"echo x >> {tmp_path}/runs; echo '{said}' >&2; exit 1")
    warning, _ = outcome_of(program)
    assert warning == gil.no_python
    assert len((tmp_path / "runs").read_text().split()) == gil.start_attempts


def test_trainer_that_is_gone_is_no_complaint(tmp_path: Path) -> None:
    said = "Error: Failed to get process executable name. Check that the process is running."
    sampler = GilSampler(lambda: 1, stub(tmp_path, f"echo '{said}' >&2; exit 1"), length_s=1)
    assert list(sampler.sample()) == []
    assert list(sampler.close()) == []
    assert sampler.warning is None


@pytest.mark.parametrize("text", ["process 1 2", "thread 7: x;f", "Error!", "thread (7): x;f many"])
def test_what_is_no_stack_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a stack"):
        parse_stacks(text)


def test_names_and_innermost_frames_are_taken_from_stacks() -> None:
    text = "thread (0x7F): drafter:1;a (x.py:1);b (y.py:2) 3\n\nthread (9);c 2\nthread (10): MainThread 1\n"
    stacks = parse_stacks(text)
    assert stacks == {("drafter:1", "b (y.py:2)"): 3, ("thread 9", "c"): 2, ("MainThread", ""): 1}
    assert by_thread(parse_stacks(text + "thread (1): drafter:1;z 4\n"))["drafter:1"] == 7


@contextmanager
def burning(names: list[str]) -> Iterator[int]:
    code = (
        "import threading, sys\n"
        "def spin():\n"
        "    while True: pass\n"
        "for name in sys.argv[1:]: threading.Thread(target=spin, name=name, daemon=True).start()\n"
        "print(flush=True); input()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, *names], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with child:
        assert child.stdout is not None
        child.stdout.readline()
        try:
            yield child.pid
        finally:
            child.kill()


def test_real_threads_that_burn_are_named() -> None:
    with burning(["target:0", "drafter:0"]) as pid:
        sampler = GilSampler(lambda: pid, length_s=1)
        assert sampler.open() is None
        rows = readings_until(sampler, lambda rows: len(rows) > 0)
    if sampler.warning == gil.no_permission:
        pytest.skip("py-spy may not attach here")
    shares = {r.key: r.value for r in rows if r.metric == "gil_hold_share" and r.value is not None}
    # Two threads do nothing but hold it, turn by turn; wide margins for a crowded machine.
    assert shares["target:0"] > 0.1
    assert shares["drafter:0"] > 0.1
    assert sampler.helper_cpu_s > 0
