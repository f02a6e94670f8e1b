"""What-if questions to recorded runs: a played run of another configuration is met, others are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dflash.contract.errors import ConfigError, RunError, UsageError
from dflash.contract.rundir import RunDir
from profiler.forecast.what_if import ask
from profiler.run import Run
from profiler.throughput import measure_throughput
from profiler.timeline import Timeline
from tests.played_pipeline import play

base: dict[str, Any] = {
    "targets": 2,
    "drafters": 1,
    "windows": 40,
    "backward_s": 0.3,
    "target_copy_s": 0.4,
    "drafter_copy_s": 0.1,
    "preset": "host",
}
no_copies: dict[str, Any] = {"preset": "peer", "target_copy_s": 0.0, "drafter_copy_s": 0.0}
Play = Callable[..., Path]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Play:
    """Plays a run; the same settings are played once."""
    done: dict[str, Path] = {}

    def play_once(**settings: Any) -> Path:
        key = repr(sorted(settings.items()))
        if key not in done:
            done[key] = play(tmp_path_factory.mktemp("play") / "run", **{**base, **settings})
            RunDir(done[key]).update(workload={"data.seed": 0})
        return done[key]

    return play_once


def rate(path: Path) -> float:
    measured = measure_throughput(Timeline.of(Run.open(path))).tokens_per_s
    assert measured is not None
    return measured


@pytest.mark.parametrize(
    ("assignments", "truth"),
    [
        (["split=3-1"], {"targets": 3}),
        (["split=4-2"], {"targets": 4, "drafters": 2}),
        (["split=6-1"], {"targets": 6}),
        (["transport=peer"], no_copies),
        (["transport=peer", "split=5-1"], {**no_copies, "targets": 5}),
        (["transport.depth=6"], {"depth": 6}),
    ],
)
def test_a_run_of_another_configuration_is_met_within_5_per_cent(
    played: Play, assignments: list[str], truth: dict[str, Any]
) -> None:
    answer = ask([Run.open(played())], assignments)
    there = rate(played(**truth))
    assert answer.prediction.tokens_per_s == pytest.approx(there, rel=0.05)
    assert answer.prediction.low < there < answer.prediction.high
    assert answer.gain == pytest.approx(there / rate(played()) - 1.0, abs=0.08)


def test_without_a_change_it_tells_today(played: Play) -> None:
    answer = ask([Run.open(played())], [])
    assert answer.gain == 0.0
    assert answer.prediction.tokens_per_s == pytest.approx(answer.today.tokens_per_s)
    assert answer.prediction.limit == "targets"
    assert answer.memory.places == ()
    assert answer.days(1000.0) is None


def test_two_runs_of_the_same_work_are_fitted_together(played: Play) -> None:
    peer = played(**no_copies, link_copy_s=0.1)
    answer = ask([Run.open(played()), Run.open(peer)], ["split=3-1", "transport=peer"])
    assert not any("peer copies" in line for line in answer.assumptions)
    there = rate(played(**no_copies, targets=3))
    assert answer.prediction.tokens_per_s == pytest.approx(there, rel=0.05)


def test_what_a_forecast_cannot_know_is_refused(played: Play) -> None:
    run = Run.open(played())
    with pytest.raises(UsageError, match=r"drafter\.layers"):
        ask([run], ["drafter.layers=2"])
    with pytest.raises(ConfigError, match="split"):
        ask([run], ["split=0-1"])
    other = Run.open(play(run.path.parent / "other", **base))
    RunDir(other.path).update(workload={"data.seed": 1})
    with pytest.raises(UsageError, match="same work"):
        ask([run, Run.open(other.path)], [])


def test_a_run_that_is_too_short_is_no_basis(tmp_path: Path) -> None:
    path = play(tmp_path / "short", **{**base, "windows": 6})
    with pytest.raises(RunError, match="no basis"):
        ask([Run.open(path)], ["split=3-1"])
