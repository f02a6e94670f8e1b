"""The real trainer, kept between trials: what a trial in place leaves is what a fresh one leaves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from autotune.in_place import InPlaceRunner
from autotune.runner import Request
from autotune.telemetry import Failed, Outcome, Telemetry
from dflash.contract.config import load_config
from dflash.contract.rundir import RunDir
from profiler.run import Run
from tests.small_training import on_logical_devices as small

base = (*small, "split=1-1", "run.max_steps=14")


@pytest.fixture
def runner() -> Iterator[InPlaceRunner]:
    with InPlaceRunner() as runner:
        yield runner


def ask(runner: InPlaceRunner, place: Path, *changes: str, **how: object) -> Outcome:
    place.mkdir()
    config = load_config(None, (*base, *changes))
    return runner.run(
        Request(values={}, config=config, seconds=60.0, run_path=place / "run", number=0, **how)  # type: ignore[arg-type]
    )


def test_a_trial_in_place_is_as_a_fresh_one(runner: InPlaceRunner, tmp_path: Path) -> None:
    other = ("pipeline.token_budget=256", "transport=pinned", "drafter.checkpointing=layers")
    first = ask(runner, tmp_path / "first")
    placed = ask(runner, tmp_path / "placed", *other)
    again = ask(runner, tmp_path / "again")
    refused = ask(runner, tmp_path / "refused", "target.layout=flat")  # needs another attention
    soaked = ask(runner, tmp_path / "soaked", soak=True)
    pids = {
        RunDir(tmp_path / name / "run").manifest()["pids"]["trainer"]
        for name in ("first", "placed", "again", "refused", "soaked")
    }
    fresh = ask(runner, tmp_path / "fresh", *other, fresh=True)
    for outcome in (first, placed, again, soaked, fresh):
        assert isinstance(outcome, Telemetry), outcome
    assert isinstance(refused, Failed)
    assert len(pids) == 1
    (pid,) = pids
    assert not psutil.pid_exists(pid)
    assert isinstance(first, Telemetry)
    assert isinstance(placed, Telemetry)
    assert isinstance(again, Telemetry)
    assert isinstance(fresh, Telemetry)
    assert isinstance(soaked, Telemetry)
    assert placed.losses == fresh.losses
    assert again.losses == first.losses
    assert runner.renewals == ["a fresh process was asked for"]
    _runs_are_alike(Run.open(tmp_path / "placed/run"), Run.open(tmp_path / "fresh/run"))
    # The telemetry of any of them tells all parts.
    assert set(placed.stages) == {"prefetch", "target", "drafter"}
    assert set(placed.copies) == {"pinned down", "pinned up"}
    assert placed.stages["target"].busy_s > 0
    assert placed.token_bytes == pytest.approx(2 * 160 * 4, rel=0.05)
    assert placed.window_tokens is not None
    assert 512 <= placed.window_tokens < 600
    assert placed.step_s is not None
    assert placed.memory["host"].planned_bytes is not None
    assert soaked.memory["host"].peak_bytes > 0
    assert placed.startup_s is not None
    assert fresh.startup_s is not None
    assert placed.startup_s < fresh.startup_s / 3  # imports alone take seconds


def _runs_are_alike(placed: Run, fresh: Run) -> None:
    def described(run: Run) -> dict[str, int]:
        names = run.events["name"].value_counts()
        return {
            str(name): int(n) for name, n in names.items() if name in ("window", "pack", "forward", "take")
        }

    assert described(placed) == described(fresh)
    assert placed.config_values == fresh.config_values
    assert placed.manifest["books"] == fresh.manifest["books"]
    assert set(placed.manifest) == set(fresh.manifest)
    assert set(placed.samples["source"]) == set(fresh.samples["source"])
