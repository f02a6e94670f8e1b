"""Somebody else holds the journal: waited for with a notice, taken away only when he is dead."""

import errno
import fcntl
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest

from autotune.journal_lock import JournalLock
from autotune.lease import Lease
from autotune.storage import TrialLog, journal_path, read_trials


@pytest.fixture
def lock_path(tmp_path):
    return journal_path(tmp_path).with_name("journal.log.lock")


def test_a_search_waits_for_the_journal_with_a_notice_and_loses_nothing(
    tmp_path, space, trial_of, lock_path, monkeypatch
):
    """C071: a foreign lock that says nothing of its holder, such as Optuna's own tools write."""
    monkeypatch.setattr("autotune.journal_lock.notice_after_s", 0.0)
    notices, waited = [], threading.Event()

    def hear(message):
        notices.append(message)
        waited.set()

    log = TrialLog(tmp_path, space, hear)
    lock_path.touch()
    trial = trial_of(0, space.baseline, 100.0)
    saving = threading.Thread(target=log.save, args=(trial,))
    saving.start()
    assert waited.wait(30)
    assert saving.is_alive()
    assert read_trials(tmp_path) == (trial,), "a reader needs no lock, and the trial is on the disk already"
    lock_path.unlink()
    saving.join(30)
    assert TrialLog(tmp_path, space).trials == (trial,)
    assert "waiting for it" in notices[0]
    assert "free again" in notices[1]
    assert not lock_path.exists()


def test_a_dead_ones_lock_is_taken_away_at_once(tmp_path, space, lock_path):
    gone = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    lease = Lease.of_process(gone.pid)
    assert lease.is_alive
    gone.communicate(b"\n")
    assert not lease.is_alive
    lock_path.write_text(lease.render())
    notices = []
    TrialLog(tmp_path, space, notices.append)
    assert "is no more" in notices[0]


def test_a_dead_ones_lock_is_taken_away_where_a_file_system_has_no_locks(tmp_path, lock_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    lock_path.write_text(replace(Lease.own(), start_ticks=1).render())
    notices = []
    lock = JournalLock(journal_path(tmp_path), notices.append)
    lock.acquire()
    assert "is no more" in notices[0]
    lock.release()


def test_a_waiter_that_is_late_takes_no_living_ones_lock_away(tmp_path, lock_path, monkeypatch):
    """Two find a dead one's lock; the first takes it away and holds his own when the second comes to it."""
    lock_path.write_text(replace(Lease.own(), start_ticks=1).render())
    first, second = (JournalLock(journal_path(tmp_path), lambda message: None) for _ in range(2))
    judged, judge = [], JournalLock._is_dead_ones

    def judge_and_be_late(lock):
        found = judge(lock)
        judged.append(lock)
        if judged == [second]:
            first.acquire()
            first_holds.set()
        return found

    first_holds = threading.Event()
    monkeypatch.setattr(JournalLock, "_is_dead_ones", judge_and_be_late)
    waiting = threading.Thread(target=second.acquire)
    waiting.start()
    assert first_holds.wait(30)
    while judged.count(second) < 3 and waiting.is_alive():
        time.sleep(0.01)
    assert waiting.is_alive(), "both hold it"
    first.release()
    waiting.join(30)
    assert not waiting.is_alive()
    second.release()


def test_a_living_ones_lock_is_not_taken_away_however_old(tmp_path, lock_path):
    lock = JournalLock(journal_path(tmp_path), lambda message: None)
    lock_path.write_text(Lease.own().render())
    os.utime(lock_path, (0, 0))
    assert not lock._is_dead_ones()
    lock_path.write_text("")
    os.utime(lock_path, (0, 0))
    assert lock._is_dead_ones()
    assert lock.acquire()
    assert Lease.read(lock_path.read_text()) == Lease.own()
    lock.release()
    assert not lock_path.exists()


def test_who_is_killed_while_taking_it_leaves_none_or_his_name(tmp_path, lock_path):
    """Killed just before it is there, or just after."""
    for when in ("before", "after"):
        code = f"""
import os, sys
from pathlib import Path
from autotune.journal_lock import JournalLock
link = os.link
def killed(source, target):
    if {when!r} == "after":
        link(source, target)
    os._exit(9)
os.link = killed
JournalLock(Path(sys.argv[1]), print).acquire()
"""
        done = subprocess.run([sys.executable, "-c", code, str(journal_path(tmp_path))], check=False)
        assert done.returncode == 9
        assert lock_path.exists() is (when == "after")
        notices = []
        lock = JournalLock(journal_path(tmp_path), notices.append)
        assert lock.acquire()
        assert len(notices) == (when == "after")
        lock.release()


def test_where_files_cannot_be_linked_it_excludes_as_well(tmp_path, lock_path, monkeypatch):
    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("autotune.journal_lock.os.link", refuse)
    first, second = (JournalLock(journal_path(tmp_path), print) for _ in range(2))
    assert first.acquire()
    assert not second._try()
    assert Lease.read(lock_path.read_text()) == Lease.own()
    first.release()
    assert list(lock_path.parent.iterdir()) == []
