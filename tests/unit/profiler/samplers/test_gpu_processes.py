"""A process is ours when the run started it, however far down, and nobody else's is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from profiler.samplers.gpu_processes import descends_from, own_and_foreign_bytes
from profiler.samplers.sensors import GpuProcess, Unreadable


def test_grandchild_is_ours_and_the_parent_is_not() -> None:
    code = "import subprocess, sys; p = subprocess.Popen(['sleep', '60']); print(p.pid, flush=True); p.wait()"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        grandchild = int(child.stdout.readline())
        try:
            is_own = descends_from(child.pid)
            assert is_own(child.pid)
            assert is_own(grandchild)
            assert is_own(os.getpid())  # the recorder itself
            assert not is_own(os.getppid())
            assert not is_own(1)
            assert not descends_from(grandchild)(child.pid)
        finally:
            os.kill(grandchild, 9)
    assert not is_own(grandchild)  # it is gone, and its number may be another's


def test_circle_or_nonsense_in_proc_ends(tmp_path: Path) -> None:
    for pid, parent in ((50, 60), (60, 50)):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (x) y) S {parent} 0")
    (tmp_path / "70").mkdir()
    (tmp_path / "70" / "stat").write_text("broken")
    is_own = descends_from(40, tmp_path)
    assert not is_own(50)
    assert not is_own(70)
    assert descends_from(60, tmp_path)(50)


def test_own_and_foreign_add_up_and_unknown_stays_unknown() -> None:
    processes = [GpuProcess(7, 30), GpuProcess(8, 5), GpuProcess(9, None)]
    assert own_and_foreign_bytes(processes, 50.0, {7}.__contains__) == (30.0, 20.0)
    assert own_and_foreign_bytes(processes, 20.0, {7}.__contains__) == (30.0, 0.0)  # read at two moments
    lost = Unreadable("gone", permanent=False)
    assert own_and_foreign_bytes(processes, lost, {7}.__contains__) == (30.0, lost)
    assert own_and_foreign_bytes(lost, 50.0, {7}.__contains__) == (lost, lost)
    own, foreign = own_and_foreign_bytes(processes, 50.0, {9}.__contains__)
    assert isinstance(own, Unreadable)
    assert isinstance(foreign, Unreadable)
