"""The line that holds the GIL is named, or the reason why it cannot be, and asking never hangs."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from profiler import gil_holder
from profiler.gil_holder import Holder, name_holder
from profiler.samplers import gil

totals = "echo 'py-spy> Wrote raw flamegraph data. Samples: 100 Errors: 0'"


def stub(folder: Path, body: str) -> Path:
    """A py-spy of our own; $out is where the stacks go."""
    program = folder / "py-spy"
    program.write_text(f'#!/bin/sh\nfor last; do out="$last"; done\n{body}\n')
    program.chmod(0o755)
    return program


def test_lines_are_named_with_the_largest_share_first(tmp_path: Path) -> None:
    stacks = "thread (1): a;run (x.py:1);f (y.py:7) 20\\nthread (2): b;g (z.py:3) 50\\n"
    report = name_holder(1, program=stub(tmp_path, f"printf '{stacks}' > $out; {totals}"))
    assert report.holders == (Holder("b", "g (z.py:3)", 0.5), Holder("a", "f (y.py:7)", 0.2))
    assert report.held_share == pytest.approx(0.7)
    assert report.reason is None


reasons = {
    "unsupported": ("echo 'Error: Unsupported version of Python: 3.99.0' >&2; exit 1", gil.no_version),
    "forbidden": ("echo 'Permission Denied: Try running again' >&2; exit 1", gil.no_permission),
    "garbage": (f"echo 'what is this' > $out; {totals}", gil.no_sense),
    "gone": ("echo 'Error: No such process' >&2; exit 1", gil_holder.gone),
    "nobody": (f": > $out; {totals}", gil_holder.nobody),
}


@pytest.mark.parametrize("name", reasons)
def test_each_failure_has_a_reason_of_its_own(tmp_path: Path, name: str) -> None:
    body, expected = reasons[name]
    report = name_holder(1, program=stub(tmp_path, body))
    assert (report.holders, report.held_share, report.reason) == ((), None, expected)


def test_reasons_are_distinct() -> None:
    texts = [expected for _, expected in reasons.values()] + [gil.no_program, gil_holder.hung]
    assert len(set(texts)) == len(texts)


def test_an_absent_program_is_a_reason(tmp_path: Path) -> None:
    assert name_holder(1, program=tmp_path / "none").reason == gil.no_program


def test_a_program_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pids = tmp_path / "pids"
    body = f"sleep 120 & echo $! $$ > {pids}.new; mv {pids}.new {pids}; wait"
    waits = []

    def late(segment: gil.Segment, wait_s: float) -> None:
        """Its time is over as soon as it has started what must end with it."""
        waits.append(wait_s)
        while not pids.exists() and segment.age_s() < 30:
            time.sleep(0.01)

    monkeypatch.setattr(gil.Segment, "end", late)
    assert name_holder(1, program=stub(tmp_path, body)).reason == gil_holder.hung
    assert waits == [6.0]
    assert not any(map(psutil.pid_exists, map(int, pids.read_text().split())))


def test_a_real_line_is_named() -> None:
    code = "def burn():\n    while True:\n        pass\nprint(flush=True)\nburn()\n"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        report = name_holder(child.pid)
        child.kill()
    if report.reason == gil.no_permission:
        pytest.skip("py-spy may not attach here")
    assert report.holders[0].line.startswith("burn (")
