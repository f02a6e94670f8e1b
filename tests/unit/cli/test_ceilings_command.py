"""`dflash-profile ceilings`: what is said, where it is kept, and what a broken child comes to."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dflash.contract.ceilings import Ceilings, DeviceCeilings
from dflash.contract.rundir import create_run
from profiler.ceilings import read_ceilings

Call = Callable[..., tuple[int, str, str]]
gpu = DeviceCeilings(
    model="NVIDIA X1", uuid="GPU-a", matmul_tflops=789.6, memory_gb_per_s=4301.0, down_gb_per_s=55.2,
    up_gb_per_s=None, peer_gb_per_s=None, source="measured 2026-01-01T00:00:00Z", reason="no memory left",
)  # fmt: skip
found = Ceilings(measured_utc="2026-01-01T00:00:00Z", torch="2.11", devices=(gpu, replace(gpu, uuid="GPU-b")))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """What the child was asked; `answer` is what it prints and `code` its exit code."""
    seen: dict[str, Any] = {"code": 0, "answer": json.dumps(found.to_json())}

    def ask(arguments: Sequence[str], *, limit_s: float) -> tuple[int, str]:
        seen["arguments"] = list(arguments)
        return seen["code"], seen["answer"]

    monkeypatch.setattr("cli.ceilings_command.ask_trainer", ask)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return seen


def test_every_gpu_is_told_and_kept_for_reports(call: Call, asked: dict[str, Any], tmp_path: Path) -> None:
    code, out, _ = call("dflash-profile", "ceilings")
    assert code == 0
    assert asked["arguments"] == ["ceilings"]
    assert "790 TFLOP/s" in out
    assert "4,300 GB/s" in out
    assert "n/a" in out
    assert "no memory left" in out
    kept = tmp_path / "cache/dflash-tune/ceilings.json"
    assert str(kept) in out
    assert read_ceilings(kept) == found


def test_a_run_keeps_them_too(call: Call, asked: dict[str, Any], tmp_path: Path) -> None:
    run = create_run(tmp_path / "r", command=[])
    code, out, err = call("dflash-profile", "ceilings", "--run", "r", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out) == json.loads(run.ceilings_path.read_text()) == json.loads(asked["answer"])


@pytest.mark.parametrize("answer", ["", "{}", "[1]", "nonsense", '{"schema": 2}'])
def test_an_unsound_answer_is_told_and_not_kept(
    call: Call, asked: dict[str, Any], tmp_path: Path, answer: str
) -> None:
    asked["answer"] = answer
    code, out, err = call("dflash-profile", "ceilings")
    assert (code, out) == (1, "")
    assert "no sound answer" in err
    assert not (tmp_path / "cache").exists()


def test_a_failure_of_the_child_and_a_missing_run_are_the_commands(call: Call, asked: dict[str, Any]) -> None:
    asked["code"] = 2
    assert call("dflash-profile", "ceilings", "--json")[:2] == (2, "")
    code, out, err = call("dflash-profile", "ceilings", "--run", "nowhere")
    assert (code, out) == (2, "")
    assert "nowhere" in err
