"""Commands run in an empty directory: in this process where that is enough, else in one of their own."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]
Call = Callable[..., tuple[int, str, str]]
became_trainer = 99


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Call:
    """`call("dflash-train", "run", …)`: exit code, stdout and stderr of a command run in this process.

    Where it would become the trainer it exits with `became_trainer`. Output that nobody should ever see
    fails the test here.
    """
    monkeypatch.chdir(tmp_path)

    def become(_path: str, _command: list[str]) -> None:
        raise SystemExit(became_trainer)

    monkeypatch.setattr("os.execv", become)
    # Reading every installed record takes longer than all the rest; test_install_check.py is about that.
    monkeypatch.setattr("cli.install_check.packages_distributions", dict)

    def run(name: str, *arguments: str) -> tuple[int, str, str]:
        program = importlib.import_module(f"cli.{name.replace('-', '_')}").program
        with pytest.raises(SystemExit) as ended:
            program.run(arguments)
        out, err = capfd.readouterr()
        assert "\x1b" not in out + err
        assert "Traceback" not in err
        assert "this is a bug" not in err, err
        assert isinstance(ended.value.code, int)
        return ended.value.code, out, err

    return run


@pytest.fixture
def run_command(tmp_path: Path, repository: Path) -> Run:
    """`run_command("dflash-train", "run", …)`: the finished process, started in an empty directory."""

    def run(name: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command_line(name, *arguments),
            cwd=tmp_path,
            env=child_environment(repository, **environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return run


@pytest.fixture
def run_python(tmp_path: Path, repository: Path) -> Run:
    """`run_python(code)`: the finished process of a few lines that may import the sources."""

    def run(code: str, **options: Any) -> subprocess.CompletedProcess[str]:
        environment = child_environment(repository, **options.pop("environment", {}))
        return subprocess.run(
            [sys.executable, "-P", "-c", code],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            **options,
        )

    return run


def command_line(name: str, *arguments: str) -> list[str]:
    code = f"from cli.start import {name.removeprefix('dflash-')} as main; main()"
    return [sys.executable, "-P", "-c", code, *arguments]


def child_environment(repository: Path, **changes: str) -> dict[str, str]:
    path = os.pathsep.join(filter(None, (changes.pop("PYTHONPATH", ""), str(repository))))
    return {**os.environ, "PYTHONPATH": path, **changes}
