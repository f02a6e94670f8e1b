"""A run that stayed "running" is told as it is: alive, killed, or unknown from here. Nothing is written."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dflash.contract import processes
from dflash.contract.processes import boot_id, identify, is_alive
from dflash.contract.rundir import RunDir, create_run
from profiler.diagnosis import diagnose
from profiler.run import Run
from profiler.run_status import RunStatus, effective_status, pid_to_signal
from profiler.timeline import Timeline


@pytest.fixture
def living() -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        yield child.pid
        child.kill()


@pytest.fixture
def dead() -> dict[str, Any]:
    """Who a process was that has ended."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        who = identify(child.pid)
        child.kill()
    return who


def manifest(
    recorder: dict[str, Any] | None, trainer: dict[str, Any] | None, **changes: Any
) -> dict[str, Any]:
    who = {"recorder": recorder, "trainer": trainer}
    return {
        "status": "running",
        "reason": None,
        "clock": {"boot_id": boot_id()},
        "pids": {role: whose and whose["pid"] for role, whose in who.items()},
        "processes": who,
        **changes,
    }


def test_what_was_written_down_stands(dead: dict[str, Any]) -> None:
    for status, reason in (("finished", None), ("failed", "it blew up"), ("stopped", "SIGINT")):
        assert effective_status(manifest(dead, dead, status=status, reason=reason)) == RunStatus(
            status, reason
        )


def test_a_living_process_keeps_a_run_running(living: int, dead: dict[str, Any]) -> None:
    for recorder, trainer in ((identify(living), dead), (dead, identify(living)), (None, identify(living))):
        assert effective_status(manifest(recorder, trainer)) == RunStatus("running", None)


def test_a_run_whose_processes_are_gone_has_failed(dead: dict[str, Any]) -> None:
    assert effective_status(manifest(dead, dead)) == RunStatus("failed", "the recorder was killed")
    assert effective_status(manifest(None, dead)) == RunStatus("failed", "the trainer was killed")


def test_a_pid_that_was_used_again_is_another_process(living: int) -> None:
    earlier = {**identify(living), "start_ticks": identify(living)["start_ticks"] - 1}
    assert effective_status(manifest(earlier, earlier)).status == "failed"


def test_a_zombie_is_gone() -> None:
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # ended, and not reaped
    assert Path(f"/proc/{child.pid}").exists()
    assert not is_alive(child.pid, None)
    child.wait()


def test_runs_from_before_starts_were_kept_go_by_pid_alone(living: int, dead: dict[str, Any]) -> None:
    for who, status in ((identify(living), "running"), (dead, "failed")):
        old = manifest(who, who)
        del old["processes"]
        assert effective_status(old).status == status


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"clock": {"boot_id": "another"}}, "on another machine"),
        ({"clock": None}, "on another machine"),
        ({"processes": {"recorder": {"pid_namespace": "pid:[1]"}}}, "in another container"),
    ],
)
def test_elsewhere_it_is_unknown(dead: dict[str, Any], changes: dict[str, Any], words: str) -> None:
    found = effective_status(manifest(dead, dead, **changes))
    assert found.status == "unknown"
    assert found.reason is not None
    assert words in found.reason


def test_before_anybody_said_who_they_are_the_maker_stands_for_them(
    living: int, dead: dict[str, Any]
) -> None:
    assert effective_status(manifest(None, None)).status == "running"
    made = manifest(None, None, processes={"maker": identify(living)})
    assert effective_status(made).status == "running"
    made = manifest(None, None, processes={"maker": dead})
    assert effective_status(made) == RunStatus("failed", "the process that made the run was killed")


def test_a_new_run_knows_its_maker(tmp_path: Path) -> None:
    made = create_run(tmp_path / "run", command=["x"]).manifest()
    assert made["processes"] == {"maker": identify(os.getpid())}
    assert effective_status(made) == RunStatus("running", None)


def test_strangers_manifests_do_not_crash() -> None:
    for odd in ({}, {"status": 3}, {"status": "running", "pids": [], "processes": 7, "clock": 1}):
        assert effective_status(odd).status in ("None", "3", "unknown")


def test_no_proc_is_no_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(processes, "_proc", tmp_path)
    assert (boot_id(), processes.pid_namespace()) == (None, None)
    assert identify(1) == {"pid": 1, "start_ticks": None, "pid_namespace": None}
    assert not is_alive(os.getpid(), None)


def test_readers_tell_it_and_leave_the_run_as_it_is(tmp_path: Path, dead: dict[str, Any]) -> None:
    run = create_run(tmp_path / "run", command=["x"])
    run.update(pids={"recorder": dead["pid"], "trainer": dead["pid"]}, processes={"recorder": dead})
    before = run.manifest_path.read_bytes()
    warnings = diagnose(Timeline.of(Run.open(run.path))).warnings
    assert "the run failed: the recorder was killed" in warnings
    assert RunDir(run.path).manifest_path.read_bytes() == before


def test_who_can_be_told_to_stop_is_known_as_soon_as_there_is_a_run(
    tmp_path: Path, dead: dict[str, Any]
) -> None:
    assert pid_to_signal(create_run(tmp_path / "r", command=["x"]).manifest()) == os.getpid()
    assert pid_to_signal(manifest(identify(1), dead)) == 1
    assert pid_to_signal(manifest(None, dead)) == dead["pid"]
    assert pid_to_signal({"status": "running"}) is None
