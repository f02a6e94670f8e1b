"""A real trainer with a GIL hog beside it, recorded from outside: named for what it is, and not without."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dflash.contract.gil_range import no_gil, other_libc
from profiler.diagnosis import Diagnosis, diagnose
from profiler.finding import Finding
from profiler.recorder import RecordOptions, record
from profiler.run import Run
from profiler.samplers import gil_wait
from profiler.timeline import Timeline
from tests.undisturbed import try_undisturbed

pytestmark = pytest.mark.slow

elsewhere = (no_gil, other_libc, gil_wait.no_proc, gil_wait.no_ptrace, gil_wait.yama.partition("{")[0])


def recorded(
    folder: Path, repository: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str
) -> tuple[Timeline, Diagnosis]:
    """The example trainer, and what is said of it."""
    folder.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(repository))
    command = [sys.executable, "-P", str(repository / "examples" / "threaded_trainer.py"), *arguments]
    options = RecordOptions(gpu="none", log=folder / "log", time_limit_s=240)
    recording = record(command, folder / "run", options)
    if recording.status != "finished":
        pytest.fail((folder / "log").read_text()[-2000:])
    timeline = Timeline.of(Run.open(folder / "run"))
    reason = timeline.gil.reason
    if reason is not None and reason.startswith(elsewhere):
        pytest.skip(f"waits for the GIL cannot be seen here: {reason}")
    assert reason is None
    return timeline, diagnose(timeline)


def gil_of(diagnosis: Diagnosis) -> Finding:
    return next(finding for finding in diagnosis.findings if finding.cause == "gil-contention")


def waiting_for_gil(diagnosis: Diagnosis, stage: str) -> float:
    """The largest share of any thread of the stage, in closing sums that add up."""
    shares = []
    for closing in diagnosis.closing_sums:
        assert sum(part.seconds for part in closing.parts) == pytest.approx(closing.range_s, abs=1e-6)
        if closing.stage == stage:
            shares.append(sum(part.share for part in closing.parts if part.kind == "gil_wait"))
    return max(shares)


def test_a_busy_python_thread_beside_the_stages_is_named_first(
    tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def attempt(number: int) -> None:
        # Each 2.5 ms of a forward end in a wait of 5 ms or more: the hog lets go no sooner.
        timeline, diagnosis = recorded(
            tmp_path / str(number), repository, monkeypatch, "--fault", "gil-hog", "--batches", "400"
        )
        assert diagnosis.primary is not None
        assert diagnosis.primary.cause == "gil-contention", diagnosis.headline
        assert diagnosis.primary.measured_cost_share is not None
        assert diagnosis.primary.measured_cost_share > 0.25
        assert waiting_for_gil(diagnosis, "target") > 0.25
        threads = timeline.gil.threads
        hog = threads.loc[threads["cpu_share"].astype(float).idxmax(), "tid"]
        assert hog not in set(timeline.threads["tid"])
        assert any(f"thread {hog} " in item.name for item in diagnosis.primary.evidence)
        by_cpu, by_holding = f"Thread {hog} ", "Move what thread tokeniser does "  # py-spy may have seen it
        assert diagnosis.next_step.startswith((by_cpu, by_holding))

    try_undisturbed(attempt)


def test_the_same_trainer_without_it_is_not_accused(
    tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def attempt(number: int) -> None:
        _, diagnosis = recorded(tmp_path / str(number), repository, monkeypatch, "--batches", "1000")
        finding = gil_of(diagnosis)
        assert finding.verdict == "rejected", finding.summary
        assert "throughput" in finding.summary, "by number, not for want of a tell-tale"
        assert waiting_for_gil(diagnosis, "target") < 0.08

    try_undisturbed(attempt)
