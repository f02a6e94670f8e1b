"""Runs with a planted fault, carried out in this process: the real trainer on logical devices."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.small_runs import small_config, write_conversations
from dflash.contract.rundir import create_run, write_text
from dflash.faults.catalogue import catalogue, healthy
from dflash.faults.injection import prepare_injected, truth_variable
from dflash.session import Session
from profiler.run import Run
from profiler.timeline import Timeline


def carry_out(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: str = "none",
    strength: float = 0.0,
    knobs: Mapping[str, Any] | None = None,
) -> tuple[Timeline, dict[str, Any]]:
    """A run of some seconds with the fault, and the truth as it was written beside it."""
    data = write_conversations(folder / "conversations.jsonl")
    config = small_config(data, max_steps=13).replacing(
        {**{**catalogue, "none": healthy}[fault].knobs, **(knobs or {})}
    )
    run = create_run(folder / "run", command=["dflash-train", "run"])
    write_text(run.config_path, config.to_toml())
    monkeypatch.setenv(truth_variable, str(folder / "truth.json"))
    session = Session(run, config)
    session.prepare_trainer = partial(prepare_injected, f"{fault}:{strength}")
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    threads = torch.get_num_threads()
    try:
        code, _ = session.carry_out()
    finally:
        torch.set_num_threads(threads)
        for number, handler in before.items():
            signal.signal(number, handler)
    assert code == 0
    return Timeline.of(Run.open(run.path)), json.loads((folder / "truth.json").read_text())
