"""One search at a time, also where the filesystem keeps no locks."""

import fcntl
import subprocess
import sys

import pytest

from autotune.lease import Lease
from autotune.study_lock import study_lock
from dflash.contract.errors import UsageError


def test_a_lock_is_respected_also_before_its_holder_has_said_who_it_is(tmp_path):
    hold = "import fcntl, sys; f = open(sys.argv[1], 'a'); fcntl.flock(f, fcntl.LOCK_EX)"
    command = [sys.executable, "-c", f"{hold}; print(1, flush=True); input()", str(tmp_path / "lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        with pytest.raises(UsageError, match="unknown pid"), study_lock(tmp_path):
            pass
        other.communicate(b"\n")


def test_a_living_holder_is_respected_where_locks_do_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(fcntl, "flock", lambda file, how: None)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        (tmp_path / "lock").write_text(Lease.of_process(other.pid).render())
        with pytest.raises(UsageError, match=f"pid {other.pid}"), study_lock(tmp_path):
            pass
        other.communicate(b"\n")
    with study_lock(tmp_path):
        assert Lease.read((tmp_path / "lock").read_text()) == Lease.own()
    assert (tmp_path / "lock").read_text() == ""
