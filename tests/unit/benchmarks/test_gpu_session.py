"""`make gpu`: what it calls is there, takes those options, and ends within the time it promises."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

promised_s = 51 * 60


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_commands_of_a_gpu_session_exist_and_keep_to_its_time(repository: Path) -> None:
    shown = subprocess.run(
        ["make", "-n", "gpu"], cwd=repository, capture_output=True, text=True, timeout=120, check=True
    ).stdout.replace("\\\n", "")
    commands = [line for line in shown.splitlines() if line.startswith("timeout")]
    limits = [re.match(r"timeout (?:-[sk] \w+ )*(\d+) ", line) for line in commands]
    assert sum(int(limit[1]) for limit in limits if limit) <= promised_s
    assert all(limits)
    pages = [line for line in commands if "benchmarks/" in line]
    assert len(pages) >= 5
    for line in pages:
        (script,) = re.findall(r"benchmarks/\w+\.py", line)
        source = (repository / script).read_text(encoding="utf-8")
        assert [option for option in re.findall(r"--[\w-]+", line) if f'"{option}"' not in source] == []
