"""A run is found by directory, by the pid of whoever trains or records it, or as the newest."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dflash.contract.errors import RunError, UsageError
from dflash.contract.rundir import clock_anchor, create_run
from profiler.live.attach import find_run, is_finishing

sleep = "import time; print('up', flush=True); time.sleep(60)"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[object]:
    """Starts a Python process that says `up` and sleeps, in `tmp_path`."""
    processes: list[subprocess.Popen[str]] = []

    def go(*arguments: str, code: str = sleep, **environment: str) -> int:
        command = [sys.executable, "-S", "-c", code, *arguments]
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
            cwd=tmp_path,
            start_new_session=True,
        )
        processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        return process.pid

    yield go
    for process in processes:
        os.killpg(process.pid, signal.SIGKILL)  # with what it started
        process.communicate()


def test_by_directory(tmp_path: Path) -> None:
    create_run(tmp_path / "r", command=["x"])
    assert find_run(str(tmp_path / "r")) == tmp_path / "r"


def test_a_directory_of_digits_is_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    create_run(tmp_path / "1", command=["x"])
    assert find_run("1") == Path("1")


def test_by_pid_of_what_the_recorder_started(tmp_path: Path, start) -> None:
    create_run(tmp_path / "r", command=["x"])
    pid = start(DFLASH_RUN_DIR=str(tmp_path / "r"))
    assert find_run(str(pid)) == tmp_path / "r"


@pytest.mark.parametrize("arguments", [("run", "--run-dir", "r"), ("run", "--run-dir=r")])
def test_by_pid_of_a_trainer_that_nobody_records(tmp_path: Path, start, arguments: tuple[str, ...]) -> None:
    create_run(tmp_path / "r", command=["x"])
    assert find_run(str(start(*arguments))) == tmp_path / "r"


def test_by_pid_of_what_started_it(tmp_path: Path, start) -> None:
    create_run(tmp_path / "r", command=["x"])
    code = (
        "import os, subprocess, sys\n"
        "os.environ['DFLASH_RUN_DIR'] = 'r'\n"
        f"subprocess.run([sys.executable, '-S', '-c', {sleep!r}])"
    )
    assert find_run(str(start(code=code))) == tmp_path / "r"


def test_a_process_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such process"):
        find_run("999999999")


def test_a_process_that_trains_nothing_is_named(start) -> None:
    with pytest.raises(UsageError, match="belongs to no run") as caught:
        find_run(str(start("[/bold]")))
    assert "time.sleep" in str(caught.value.found)


def test_a_process_whose_run_is_gone(start, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"no run\.json"):
        find_run(str(start(DFLASH_RUN_DIR=str(tmp_path / "gone"))))


def test_several_runs_below_one_process_are_listed(tmp_path: Path, start) -> None:
    code = (
        "import os, subprocess, sys\n"
        "for n in 'ab':\n"
        "    os.environ['DFLASH_RUN_DIR'] = '/tmp/' + n\n"
        f"    p = subprocess.Popen([sys.executable, '-S', '-c', {sleep!r}], stdout=subprocess.PIPE)\n"
        "    p.stdout.readline()\n"
        "print('up', flush=True); p.wait()"
    )
    with pytest.raises(UsageError, match="several runs") as caught:
        find_run(str(start(code=code)))
    assert "/tmp/a" in str(caught.value.found)


def test_a_process_of_another_user_is_told_apart(monkeypatch: pytest.MonkeyPatch, start) -> None:
    pid = start()

    def refuse(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(UsageError, match="may not be looked at"):
        find_run(str(pid))


def test_nothing_named_means_the_newest_that_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunError, match="no run to watch"):
        find_run(None)
    for name, status, started_ns in (("a", "running", 1), ("b", "running", 2), ("c", "finished", 3)):
        run = create_run(Path("runs") / name, command=["x"])
        run.update(status=status, clock={"utc_ns": started_ns})
    Path("runs/d").mkdir()
    Path("runs/d/run.json").write_text("nonsense")
    assert find_run(None) == Path("runs/b")


def test_a_run_is_finishing_while_its_recorder_has_the_last_word_to_write(start) -> None:
    done = {"status": "finished", "clock": clock_anchor(), "pids": {"recorder": start(), "trainer": 1}}
    assert is_finishing(done)
    assert not is_finishing({**done, "status": "running"})
    assert not is_finishing({**done, "usage": None})
    assert not is_finishing({**done, "pids": {"recorder": 999999999}})
    assert not is_finishing({**done, "pids": {"recorder": None}})
    assert not is_finishing({**done, "clock": {"boot_id": "another machine"}})
