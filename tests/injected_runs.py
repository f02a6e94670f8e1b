"""Runs carried out in this process, with a planted fault or without: the real trainer on logical devices."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.small_runs import small_config, write_conversations
from dflash.contract.config import TrainConfig
from dflash.contract.rundir import create_run, write_text
from dflash.faults.catalogue import catalogue, healthy
from dflash.faults.injection import prepare_injected, truth_variable
from dflash.session import Session
from dflash.trainer import Trainer, prepare
from profiler.run import Run
from profiler.timeline import Timeline

# Warm-up is cut to at most half of the windows, and ten steady ones are needed: of twenty there always are.
short_windows = {"window.tokens": 512, "run.max_steps": 21}  # the first has no beginning


def carry_out(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: str = "none",
    strength: float = 0.0,
    knobs: Mapping[str, Any] | None = None,
) -> tuple[Timeline, dict[str, Any]]:
    """A run of some seconds with the fault, and the truth as it was written beside it."""
    data = write_conversations(folder / "conversations.jsonl")
    config = small_config(data).replacing(
        {**{**catalogue, "none": healthy}[fault].knobs, **short_windows, **(knobs or {})}
    )
    monkeypatch.setenv(truth_variable, str(folder / "truth.json"))
    timeline = train(folder, config, partial(prepare_injected, f"{fault}:{strength}"))
    return timeline, json.loads((folder / "truth.json").read_text())


def train(folder: Path, config: TrainConfig, prepare_trainer: Callable[..., Trainer] = prepare) -> Timeline:
    """What `dflash-train run` does, without a process for it; signals and torch are as before afterwards."""
    run = create_run(folder / "run", command=["dflash-train", "run"])
    write_text(run.config_path, config.to_toml())
    session = Session(run, config, prepare_trainer=prepare_trainer)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    threads = torch.get_num_threads()
    try:
        code, _ = session.carry_out()
    finally:
        torch.set_num_threads(threads)
        for number, handler in before.items():
            signal.signal(number, handler)
    if code != 0:
        pytest.fail(f"the run ended with exit code {code}")
    return Timeline.of(Run.open(run.path))
