"""What a run directory's manifest is told by the machine; more where it is used."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from dflash.contract import rundir


@pytest.mark.parametrize("quick", range(5))
def test_both_clocks_are_read_at_one_instant_whatever_stands_still_between_them(
    monkeypatch: pytest.MonkeyPatch, quick: int
) -> None:
    ahead_ns, stills = 10**18, iter([0 if reading == quick else 5_000_000 for reading in range(5)])
    now = SimpleNamespace(ns=0)

    def monotonic_ns() -> int:
        now.ns += 40
        return now.ns

    def time_ns() -> int:
        utc_ns = ahead_ns + now.ns
        now.ns += next(stills)
        return utc_ns

    monkeypatch.setattr(rundir, "time", SimpleNamespace(monotonic_ns=monotonic_ns, time_ns=time_ns))
    utc_ns, at_ns = rundir.one_instant()
    assert abs(utc_ns - at_ns - ahead_ns) <= 40


def test_two_threads_that_write_one_file_do_not_take_each_others_halves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, second, sync = tmp_path / "run.json", [], os.fsync

    def sync_while_another_writes(file: int) -> None:
        if not second:
            second.append(threading.Thread(target=rundir.write_text, args=(path, "the second")))
            second[0].start()
            second[0].join()
        sync(file)

    monkeypatch.setattr(os, "fsync", sync_while_another_writes)
    rundir.write_text(path, "the first, which ends last")
    assert path.read_text() == "the first, which ends last"
    assert [entry.name for entry in tmp_path.iterdir()] == ["run.json"]
