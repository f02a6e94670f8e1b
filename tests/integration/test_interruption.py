"""SIGINT and SIGTERM at any stage of a run: a readable run, a whole checkpoint, the right exit code, soon."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dflash.checkpoints.reading import find_checkpoint
from dflash.contract.config import load_config
from profiler.run import Run
from tests.small_training import on_logical_devices

pytestmark = pytest.mark.slow

small = (
    *on_logical_devices,
    "transport=peer",
    "run.max_steps=1000",  # more than any test waits for
    "run.checkpoint_every=0",
    "console_every_s=0.1",
)


def start(tmp_path: Path, repository: Path, *changes: str) -> subprocess.Popen[str]:
    config = load_config(None, (*small, *changes))
    (tmp_path / "run.toml").write_text(config.to_toml())
    command = [sys.executable, "-P", "-m", "dflash", "run", "run.toml", "--run-dir", "run", "--json"]
    environment = {**os.environ, "PYTHONPATH": str(repository), "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.Popen(
        command, cwd=tmp_path, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def wait_for_steps(process: subprocess.Popen[str]) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        if re.search(r"step \d+/", line):
            return
    raise AssertionError("ended before its first step")


def end(process: subprocess.Popen[str], tmp_path: Path) -> tuple[int, dict[str, object], str]:
    """Exit code, closing document, stderr; the run must be readable and not running."""
    began_s = time.monotonic()
    out, err = process.communicate(timeout=120)
    assert time.monotonic() - began_s < 60
    document = json.loads(out)
    run = Run.open(tmp_path / "run")
    assert run.manifest["status"] == document["status"]
    assert run.torn == ()
    return process.returncode, document, err


def test_one_signal_ends_after_the_window_with_a_checkpoint(tmp_path: Path, repository: Path) -> None:
    process = start(tmp_path, repository)
    wait_for_steps(process)
    process.send_signal(signal.SIGTERM)  # test_commands.py sends SIGINT
    returned, document, err = end(process, tmp_path)
    assert (returned, document["status"], document["reason"]) == (143, "stopped", "SIGTERM")
    books = document["books"]
    assert isinstance(books, dict)
    assert books["batches_made"] == books["batches_trained"] + books["batches_dropped"]
    saved = [path.name for path in (tmp_path / "run/checkpoints").iterdir()]
    assert saved == [f"step-{books['steps_done']}"]
    manifest = find_checkpoint(str(tmp_path / "run"), older=False).manifest
    assert manifest.position.step == manifest.optimizer_updates == books["steps_done"]
    assert f"stopped at step {books['steps_done']} (SIGTERM)" in err


def test_two_signals_end_it_too_and_leave_nothing_half(tmp_path: Path, repository: Path) -> None:
    process = start(tmp_path, repository, "transport=host", "devices.pageable_gigabytes_per_s=0.0005")
    wait_for_steps(process)
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    returned, document, _ = end(process, tmp_path)
    assert (returned, document["status"]) == (130, "stopped")
    books = document["books"]
    assert isinstance(books, dict)
    (saved,) = (tmp_path / "run/checkpoints").iterdir()
    assert saved.name == f"step-{books['steps_done']}", (
        "of the last step made: no work is lost but the window's"
    )
    assert find_checkpoint(str(saved)).path == saved


def test_a_signal_while_loading_is_no_traceback(tmp_path: Path, repository: Path) -> None:
    process = start(tmp_path, repository)
    manifest = tmp_path / "run/run.json"
    while process.poll() is None:
        if manifest.exists() and json.loads(manifest.read_text())["config"] is not None:
            break
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    returned, document, err = end(process, tmp_path)
    assert (returned, document["status"], document["reason"]) == (130, "stopped", "SIGINT")
    assert "Traceback" not in err
    assert "before the first step" in err
