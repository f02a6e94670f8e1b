"""The installed commands end to end, with a real trainer behind them."""

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

from dflash.contract.config import load_config
from tests.small_training import on_logical_devices

pytestmark = pytest.mark.slow

knobs = (*on_logical_devices, "transport=peer", "run.checkpoint_every=0", "console_every_s=0.1")
small = [part for knob in knobs for part in ("--set", knob)]


def command_line(name: str, *arguments: str) -> list[str]:
    code = f"from cli.start import {name.removeprefix('dflash-')} as main; main()"
    return [sys.executable, "-P", "-c", code, *arguments]


@pytest.fixture
def environment(repository: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(repository), "CUDA_VISIBLE_DEVICES": ""}


def run(command: list[str], where: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=where, env=environment, capture_output=True, text=True, timeout=240, check=False
    )


def test_a_recorded_run_is_one_json_document_and_a_complete_directory(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    train = command_line("dflash-train", "run", *small, "--max-steps", "2", "--json")
    command = command_line("dflash-profile", "record", "--json", "--run-dir", "[a b] run", "--", *train)
    result = run(command, tmp_path, environment)
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    assert (document["status"], document["exit_code"]) == ("finished", 0)
    directory = tmp_path / "[a b] run"
    manifest = json.loads((directory / "run.json").read_text())
    assert manifest["status"] == "finished"
    assert load_config(directory / "config.toml").run.max_steps == 2
    assert [path.name for path in (directory / "checkpoints").iterdir()] == ["step-2"]
    assert list((directory / "events").glob("*.arrow"))
    assert Path(directory / "report.html").stat().st_size > 10_000
    assert document["diagnosis"] == json.loads((directory / "findings.json").read_text())


def test_check_data_reads_the_configuration_it_is_handed(tmp_path: Path, environment: dict[str, str]) -> None:
    turns = [{"role": "user", "content": "How?"}, {"role": "assistant", "content": "Like this. " * 20}]
    rows = [json.dumps({"messages": turns}), "not json"]
    (tmp_path / "chats.jsonl").write_text("\n".join(rows))
    command = command_line("dflash-train", "check-data", "--data", "chats.jsonl", "--json")
    result = run(command, tmp_path, environment)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["path"] == str(tmp_path / "chats.jsonl")


def test_a_plan_is_told_and_a_run_that_cannot_fit_is_refused(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    logical = ("--set", "devices.kind=logical")
    result = run(command_line("dflash-train", "plan", *logical, "--json"), tmp_path, environment)
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    assert document["fits"]
    (place,) = document["places"]
    assert place["needed_bytes"] == sum(line["bytes"] for line in place["lines"])
    # 96 drafters of this shape do not fit into any machine's memory.
    huge = ("--set", "target.model=random:qwen3-8b", "--set", "split=1-96", "--set", "window.tokens=200000")
    result = run(command_line("dflash-train", "run", *logical, *huge), tmp_path, environment)
    assert result.returncode == 2, result.stderr
    assert "does not fit into that of host" in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == "", "what only the trainer can refuse is told the same way"
    (run_directory,) = (tmp_path / "runs").iterdir()
    assert "drafters 0 to 95: weights" in json.loads((run_directory / "run.json").read_text())["reason"]


def test_ctrl_c_reaches_the_trainer_that_the_command_became(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    command = command_line("dflash-train", "run", *small, "--max-steps", "1000", "--run-dir", "r")
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if re.search(r"step \d+/", line):
                break
        process.send_signal(signal.SIGINT)
        interrupted_s = time.monotonic()
        rest = process.stderr.read()
        assert process.wait(60) == 130, rest
        assert time.monotonic() - interrupted_s < 60
    assert json.loads((tmp_path / "r/run.json").read_text())["status"] == "stopped"
    assert list((tmp_path / "r/checkpoints").glob("step-*"))
