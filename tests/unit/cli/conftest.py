"""Commands run as people run them: a process of their own, away from the source tree."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]


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
    module = name.replace("-", "_")
    code = f"import sys; from cli.{module} import main; sys.argv[0] = {name!r}; main()"
    return [sys.executable, "-P", "-c", code, *arguments]


def child_environment(repository: Path, **changes: str) -> dict[str, str]:
    path = os.pathsep.join(filter(None, (changes.pop("PYTHONPATH", ""), str(repository))))
    return {**os.environ, "PYTHONPATH": path, **changes}
