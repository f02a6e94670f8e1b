"""A process is told by pid, start and boot."""

import dataclasses
import os

from autotune.lease import Lease


def test_a_lease_survives_its_text_and_nothing_else_is_one():
    assert Lease.read(Lease.own().render()) == Lease.own()
    assert [Lease.read(text) for text in ("", "17", "{}", "[1]", '{"pid": 1}')] == [None] * 5


def test_a_pid_that_is_used_again_is_somebody_else():
    mine = Lease.own()
    assert mine.is_alive
    assert mine.pid == os.getpid()
    assert not dataclasses.replace(mine, start_ticks=mine.start_ticks + 1).is_alive
    other_boot = dataclasses.replace(mine, boot_id="another")
    assert not other_boot.is_alive
    assert not other_boot.is_here
