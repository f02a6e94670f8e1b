"""Which samplers a recording has, and how it reads what the trainer publishes; more in tests/integration."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dflash.contract.rundir import RunDir, create_run
from profiler import recorder
from profiler.recorder import RecordOptions
from profiler.samplers.gpu import open_sensors

child: Any = SimpleNamespace(launcher_pid=1, pid=2)


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return create_run(tmp_path / "run", command=["x"])


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (RecordOptions(), ["host", "numa", "gpu", "gil_wait"]),
        (RecordOptions(gil_holders=True), ["host", "numa", "gpu", "gil", "gil_wait"]),
        (RecordOptions(gil=False), ["host", "numa", "gpu"]),
        (RecordOptions(gil=False, gil_holders=True), ["host", "numa", "gpu", "gil"]),
    ],
)
def test_samplers_are_those_that_were_asked_for(
    run: RunDir, options: RecordOptions, names: list[str]
) -> None:
    found = recorder._choose_samplers(run, child, options, open_sensors("nvml"))
    assert [sampler.name for sampler in found] == names
    without_gpu = recorder._choose_samplers(run, child, options, None)
    assert [sampler.name for sampler in without_gpu] == [name for name in names if name != "gpu"]


def test_what_is_published_is_understood_again_only_when_it_was_replaced(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = []
    real = RunDir.manifest
    monkeypatch.setattr(RunDir, "manifest", lambda self: reads.append(time.monotonic()) or real(self))
    published = recorder._Published(run)
    assert [published.entry("gil") for _ in range(100)] == [None] * 100
    assert len(reads) == 1
    run.update(gil={"pid": 7})
    reads.clear()
    assert [published.entry("gil") for _ in range(100)] == [{"pid": 7}] * 100
    assert published.entry("status") == "running"
    assert len(reads) == 1


def test_a_manifest_is_told_from_an_older_one_of_the_same_inode_and_time(run: RunDir) -> None:
    """As after two rewrites where inodes are used again, within one tick of a coarse clock."""
    published = recorder._Published(run)
    for pid in (7, 8, 9):
        run.manifest_path.write_text(json.dumps({**run.manifest(), "gil": {"pid": pid}}))  # in place
        os.utime(run.manifest_path, ns=(0, 0))
        assert published.entry("gil") == {"pid": pid}


def test_a_manifest_that_is_not_there_or_broken_says_nothing(run: RunDir) -> None:
    published = recorder._Published(run)
    run.manifest_path.write_text("{")
    assert published.entry("gil") is None
    run.manifest_path.unlink()
    assert published.entry("gil") is None


def test_a_signal_that_comes_as_soon_as_the_run_can_be_seen_stops_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(*given: Any, **named: Any) -> RunDir:
        made = create_run(*given, **named)
        signal.raise_signal(signal.SIGINT)
        return made

    monkeypatch.setattr(recorder, "create_run", make)
    recording = recorder.record(["sleep", "60"], tmp_path / "r", RecordOptions(gpu="none", gil=False))
    assert (recording.status, recording.exit_code) == ("stopped", 130)
    assert recording.run.manifest()["reason"] == "stopped by SIGINT"
