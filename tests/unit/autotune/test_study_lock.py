"""One search at a time, also where the filesystem keeps no locks."""

import fcntl
import subprocess
import sys

import pytest

from autotune.lease import Lease
from autotune.study_lock import study_lock
from dflash.contract.errors import UsageError


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
