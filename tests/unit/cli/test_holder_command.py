"""`dflash-profile holder`: a run or a process, words or JSON, and errors that say what was found."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cli.dflash_profile import program
from cli.holder_command import trainer_of
from dflash.contract.errors import RunError
from dflash.contract.rundir import RunDir, create_run
from profiler import gil_holder
from profiler.gil_holder import Holder, HolderReport

told = HolderReport((Holder("target-0", "forward (a.py:7)", 0.61), Holder("spin", "f (b.py:1)", 0.2)), 0.81)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Calls of the function behind the command, which says what `told` says."""
    calls: list[Any] = []
    monkeypatch.setattr(gil_holder, "name_holder", lambda pid, seconds: calls.append((pid, seconds)) or told)
    return calls


def running(path: Path, **entries: Any) -> RunDir:
    run = create_run(path, command=["x"])
    run.update(**entries)
    return run


def test_a_process_is_looked_at_for_as_long_as_asked(asked: list[Any]) -> None:
    done = CliRunner().invoke(program.app, ["holder", "123", "--for", "3"])
    assert done.exit_code == 0
    assert asked == [(123, 3)]
    assert "forward (a.py:7)" in done.stdout
    assert done.stdout.index("target-0") < done.stdout.index("spin")


def test_json_is_one_document(asked: list[Any]) -> None:
    document = json.loads(CliRunner().invoke(program.app, ["holder", "123", "--json"]).stdout)
    assert document["pid"] == 123
    assert document["holders"][0] == {"thread": "target-0", "line": "forward (a.py:7)", "share": 0.61}


def test_the_process_of_a_run_is_the_one_that_published_its_gil(tmp_path: Path) -> None:
    assert trainer_of(running(tmp_path / "a", gil={"pid": 5}, pids={"trainer": 4}).path) == 5
    assert trainer_of(running(tmp_path / "b", pids={"trainer": 4}).path) == 4


def test_an_ended_run_is_refused(tmp_path: Path) -> None:
    run = running(tmp_path / "a", pids={"trainer": os.getpid()}, status="finished")
    with pytest.raises(RunError, match="not in progress"):
        trainer_of(run.path)


def test_a_reason_is_an_error_for_people(monkeypatch: pytest.MonkeyPatch) -> None:
    reason = HolderReport(reason="py-spy is not installed")
    monkeypatch.setattr(gil_holder, "name_holder", lambda pid, seconds: reason)
    done = CliRunner().invoke(program.app, ["holder", "123"])
    assert done.exit_code == 1
    assert "py-spy is not installed" in str(done.exception) + done.output
