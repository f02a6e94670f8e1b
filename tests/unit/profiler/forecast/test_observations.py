"""What a forecast takes from a run besides the times of its batches."""

from __future__ import annotations

from pathlib import Path

import pytest

from dflash.contract.rundir import RunDir
from profiler.forecast.observations import observe_run
from profiler.run import Run
from profiler.timeline import Timeline
from tests.gil_samples import add_gil, stages
from tests.played_pipeline import play
from tests.run_builder import RunBuilder


def cores_of(path: Path) -> float | None:
    run = Run.open(path)
    return observe_run(run, Timeline.of(run)).cores


def played(path: Path, cores: int | None) -> Path:
    """One target that works all the time, and a drafter that works half of it."""
    play(path, targets=1, forward_s=0.2, backward_s=0.09, optimizer_s=0.0, windows=20)
    RunDir(path).update(hardware={"usable_cores": cores} if cores else {})
    return path


def test_cores_that_work_leaves_alone_count_for_others(tmp_path: Path) -> None:
    run = played(tmp_path / "run", 2)
    assert cores_of(run) == 2.0  # nobody knows what the stages computed
    threads = dict.fromkeys(stages.values(), 0.0)
    add_gil(run, threads, cpu=0.1, ready=0.0, holder=None)
    found = cores_of(run)
    assert found is not None
    assert found == pytest.approx(2.0 / (3 * 0.1 / 1.5), rel=0.15)  # of their work they compute a fifth


def test_work_that_computes_all_along_has_the_cores_that_there_are(tmp_path: Path) -> None:
    run = played(tmp_path / "run", 2)
    add_gil(run, dict.fromkeys(stages.values(), 0.0), cpu=0.6, ready=0.3, holder=None)
    assert cores_of(run) == pytest.approx(2.0)


def test_without_a_number_of_cores_there_is_none(tmp_path: Path) -> None:
    assert cores_of(played(tmp_path / "run", None)) is None


def test_what_threads_enqueued_is_held_against_what_gpus_took(tmp_path: Path) -> None:
    builder = RunBuilder(tmp_path / "run")
    for batch in range(14):
        at_s = 10.0 * batch
        facts = {"batch": batch, "tokens": 100, "window": batch}
        builder.span("target", 0, "forward", at_s, at_s + 2.0, **facts)
        builder.span("target", 0, "forward", at_s, at_s + 8.0, clock="gpu", **facts)
        builder.span("drafter", 0, "backward", at_s, at_s + 9.0, **facts)
        builder.span("drafter", 0, "backward", at_s, at_s + 9.0, clock="gpu", **facts)
        builder.window(batch, at_s + 10.0, 100)
    run = Run.open(builder.finish())
    seen = observe_run(run, Timeline.of(run))
    assert seen.enqueueing == {"target": pytest.approx(0.25), "drafter": pytest.approx(1.0)}


def test_work_that_was_not_timed_on_a_gpu_has_no_such_share(tmp_path: Path) -> None:
    run = Run.open(played(tmp_path / "run", 2))
    assert observe_run(run, Timeline.of(run)).enqueueing == {}
