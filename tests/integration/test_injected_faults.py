"""Sixteen planted faults and a healthy run: each live on logical devices, each named for what it is.

A target and far buffers that hold up one of several: test_injected_links.py.

Faults take about half of the throughput by sleeping, or hold what others need. A run in which other jobs had
the CPUs says nothing: then it is made again.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from benchmarks.small_runs import small_config, write_conversations
from benchmarks.warm_trainer import WarmTrainer
from dflash.contract.gil_range import no_gil, other_libc
from dflash.contract.rundir import python_command
from dflash.faults.catalogue import catalogue
from dflash.faults.injection import truth_variable
from profiler.diagnosis import diagnose
from profiler.recorder import RecordOptions, record
from profiler.rules.verdicts import named_cost_share
from profiler.run import Run
from profiler.samplers import gil_wait
from profiler.timeline import Timeline
from tests.injected_runs import carry_out
from tests.undisturbed import try_undisturbed

pytestmark = pytest.mark.slow

strength = 0.5  # of the most that a fault can have
by_events = (
    "sync-copy",
    "python-packing",
    "shared-queue",
    "upload",
    "deep-queue",
    "slow-data",
    "slow-drafter",
    "recompiles",
    "straggling-link",
    "slow-links",
    "scalar-sync",
    "slow-kernels",
    "small-batches",
    "autotune-lock",
    "slow-gradients",
)
knobs = {
    "deep-queue": {  # soon full, and full long before the targets have delivered all
        "transport.depth": 12,
        "pipeline.token_budget": 256,
        "run.max_steps": 26,
    },
    "shared-queue": {"run.max_steps": 30},  # where batches live is drawn, so windows differ: more of them
    "slow-drafter": {"window.tokens": 1024},
    "small-batches": {"data.max_length": 128, "pipeline.token_budget": 128},
}
crowded = 0.1  # of a stage's time without a CPU
no_samples = (no_gil, other_libc, gil_wait.no_proc, gil_wait.no_ptrace, gil_wait.yama.partition("{")[0])


@pytest.mark.parametrize("fault", by_events)
def test_a_planted_fault_is_named_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    check_named_first(tmp_path, monkeypatch, fault, strength * catalogue[fault].below)


def check_named_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str = "none", chosen: float = 0.0
) -> None:
    """That the truth is the cause named first, in a run in which others had not the CPUs."""

    def attempt(number: int) -> str | None:
        folder = tmp_path / str(number)
        folder.mkdir()
        timeline, truth = carry_out(folder, monkeypatch, fault, chosen, knobs.get(fault))
        diagnosis = diagnose(timeline)
        first = diagnosis.primary.cause if diagnosis.primary else "nothing"
        return None if first == truth["cause"] else f"{first}, not {truth['cause']}: {diagnosis.headline}"

    try_undisturbed(attempt)


def test_a_run_at_the_same_pace_without_a_fault_is_healthy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_named_first(tmp_path, monkeypatch)


def test_a_hog_of_the_gil_is_named_in_a_recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = small_config(write_conversations(tmp_path / "conversations.jsonl"), max_steps=40)
    (tmp_path / "run.toml").write_text(config.to_toml())
    monkeypatch.setenv(truth_variable, str(tmp_path / "truth.json"))
    command = [*python_command(), "run", str(tmp_path / "run.toml"), "--inject", "gil-hog:0.9"]
    options = RecordOptions(gpu="none", log=tmp_path / "log", time_limit_s=240)
    recording = record(command, tmp_path / "run", options, start=WarmTrainer)
    assert recording.status == "finished", (tmp_path / "log").read_text()[-2000:]
    timeline = Timeline.of(Run.open(tmp_path / "run"))
    if (timeline.gil.reason or "").startswith(no_samples):
        pytest.skip(f"waits for the GIL cannot be seen here: {timeline.gil.reason}")
    diagnosis = diagnose(timeline)
    stages = timeline.gil.threads[timeline.gil.threads["tid"].isin(timeline.threads["tid"])]
    named = [finding.cause for finding in diagnosis.findings if finding.supported]
    if float(stages["cpu_wait_share"].max()) <= crowded:
        assert named[:1] == ["gil-contention"], diagnosis.headline
        return
    # Without a core of its own the hog also takes the stages' CPU: which of the two costs more is open, and
    # where it is the CPU, that is why the GIL is not named. Its waits were seen either way.
    finding = next(finding for finding in diagnosis.findings if finding.cause == "gil-contention")
    assert (finding.measured_cost_share or 0.0) >= named_cost_share, finding.summary
    assert finding.supported or "wait for a CPU" in finding.summary, finding.summary


def test_the_run_directory_does_not_hold_the_truth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    carry_out(tmp_path, monkeypatch, "slow-data", strength, {"run.max_steps": 3})
    told = [path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert told
    assert not any(b"prefetch-starvation" in content for content in told)
    assert json.loads((tmp_path / "truth.json").read_text())["cause"] == "prefetch-starvation"
    assert str(tmp_path / "run") not in os.environ[truth_variable]
