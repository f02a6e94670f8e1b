"""What is said of two runs: faster, slower, equal within noise, too short; and what a gate makes of it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dflash.contract.rundir import RunDir
from profiler.comparison import Comparison, Ratio, compare, judge
from profiler.run import Run
from tests.gil_samples import add_gil
from tests.played_pipeline import play
from tests.run_builder import RunBuilder

work = {"data.seed": 0, "target.model": "random:tiny"}


def played(path: Path, **settings: Any) -> Run:
    """A run of 24 windows; targets set the pace unless the settings say otherwise."""
    settings = {"windows": 24, "targets": 2, "batches_per_window": 4, **settings}
    play(path, **settings)
    RunDir(path).update(workload=work)
    return Run.open(path)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return played(tmp_path_factory.mktemp("base") / "a")


def against(base: Run, path: Path, *, limit: float | None = 0.03, **settings: Any) -> Comparison:
    return compare(base, played(path / "b", **{"seed": 7, **settings}), limit=limit)


def test_a_slower_stage_is_named_with_its_figures(base: Run, tmp_path: Path) -> None:
    found = against(base, tmp_path, forward_s=1.25)
    assert found.outcome == "slower"
    assert found.ratio is not None
    assert found.ratio.low < 1 / 1.25 < found.ratio.high
    assert found.gate is not None
    assert found.gate.exit_code == 3
    assert "slower than A (beyond noise" in found.verdict
    assert re.search(r"the targets' forward grew from (0\.9|1)\S* to 1\.2\S* s a batch", found.verdict)


def test_copies_that_set_a_stage_back_are_named_as_copies(base: Run, tmp_path: Path) -> None:
    found = against(base, tmp_path, drafter_copy_s=1.9)
    assert "the drafters' copies (pageable) grew from 0 to 1.9" in found.verdict
    first = found.stages[0]
    assert (first.stage, first.part, first.sets_pace, first.is_told) == (
        "drafter",
        "copy pageable",
        True,
        True,
    )
    by_name = {figure.name: figure for figure in found.copies}
    assert by_name["drafter copies pageable: bytes a batch"].a == 0
    assert by_name["drafter copies pageable: bytes a batch"].b == pytest.approx(20e6, rel=0.05)
    speed = by_name["drafter copies pageable: speed"]
    assert speed.a is None
    assert speed.reason is not None


def test_a_growing_wait_for_the_gil_is_named_as_that(tmp_path: Path) -> None:
    a, b = played(tmp_path / "a"), played(tmp_path / "b", forward_s=1.6, seed=7)
    found = compare(
        Run.open(add_gil(a.path, {300: 0.01, 301: 0.01})), Run.open(add_gil(b.path, {300: 0.38, 301: 0.38}))
    )
    assert "the targets' waiting for the GIL grew" in found.verdict
    forward = next(change for change in found.stages if (change.stage, change.part) == ("target", "forward"))
    assert not forward.is_told
    assert found.warnings == ()


def test_where_one_run_knows_no_waits_for_the_gil_they_count_as_work_in_both(
    base: Run, tmp_path: Path
) -> None:
    b = played(tmp_path / "b", seed=7)
    found = compare(base, Run.open(add_gil(b.path, {300: 0.38, 301: 0.38})))
    assert not any(change.kind == "gil_wait" or change.is_told for change in found.stages)
    assert any(text.startswith("waits for the GIL are unknown in A") for text in found.warnings)


def test_waits_follow_and_are_never_named_as_the_cause(base: Run, tmp_path: Path) -> None:
    found = against(base, tmp_path, drafter_copy_s=1.9)
    put = next(change for change in found.stages if change.part == "put q_hs")
    assert put.beyond_noise
    assert not put.is_told
    assert "put" not in found.verdict


def test_a_faster_run_passes_and_the_gain_is_explained(base: Run, tmp_path: Path) -> None:
    found = against(base, tmp_path, forward_s=0.8)
    assert found.outcome == "faster"
    assert found.gate is not None
    assert found.gate.exit_code == 0
    assert "faster than A" in found.verdict
    assert "forward shrank" in found.verdict


def test_another_seed_of_the_same_play_is_equal_within_noise(base: Run, tmp_path: Path) -> None:
    found = against(base, tmp_path, limit=0.05)
    assert found.outcome == "equal"
    assert "equal within noise" in found.verdict
    assert found.gate is not None
    assert found.gate.exit_code == 0
    assert not any(change.is_told for change in found.stages)


def test_a_run_compared_with_itself_has_an_interval_not_a_certainty(base: Run) -> None:
    found = compare(base, base)
    assert found.ratio is not None
    assert found.ratio.low < 1.0 < found.ratio.high
    assert found.gate is None
    assert (found.knobs, found.surroundings) == ((), ())


def test_a_change_beside_the_pace_does_not_explain_a_slower_run(base: Run, tmp_path: Path) -> None:
    """The drafters got dearer, but the targets, dearer too, set the pace."""
    found = against(base, tmp_path, forward_s=1.5, backward_s=0.5)
    assert "the targets' forward grew" in found.verdict
    own = [change for change in found.stages if change.is_told]
    assert [change.stage for change in own][:1] == ["target"]
    assert any(change.stage == "drafter" for change in own)


def test_a_short_run_cannot_be_judged(base: Run, tmp_path: Path) -> None:
    found = against(base, tmp_path, windows=8)
    assert (found.outcome, found.ratio, found.stages) == ("unknown", None, ())
    assert found.verdict.startswith("Not enough data")
    assert "B: 7 whole windows" in str(found.reason)
    assert found.stages_reason == "too few steady windows in B"
    assert found.gate is not None
    assert found.gate.exit_code == 4


def test_knobs_and_surroundings_that_differ_are_listed(base: Run, tmp_path: Path) -> None:
    path = tmp_path / "b"
    played(path, depth=4, seed=3)
    RunDir(path).update(versions={"torch": "9.9"}, hardware={"cpu": "another", "gpus": [{"name": "H200"}]})
    found = compare(base, Run.open(path))
    assert [(d.name, d.a, d.b) for d in found.knobs] == [("transport.depth", "2", "4")]
    assert {d.name for d in found.surroundings} >= {"versions.torch", "hardware.cpu", "hardware.gpus"}
    depth = {figure.name: figure for figure in found.depths}["q_hs: mean depth"]
    assert depth.a is not None
    memory = {figure.name: figure for figure in found.memory}
    assert memory["peak of host memory, anonymous"].a == pytest.approx(2.2e8, rel=0.1)
    assert memory["peak of memory of the fullest GPU"].reason == "not recorded in A and B"


def test_the_document_is_strict_json(base: Run, tmp_path: Path) -> None:
    document = against(base, tmp_path, windows=3).to_json()
    assert json.loads(json.dumps(document, allow_nan=False))["schema"] == 1


def test_runs_that_tell_nothing_are_compared_without_a_crash(tmp_path: Path) -> None:
    runs = []
    for name in "ab":
        RunBuilder(tmp_path / name).finish(workload=work)
        runs.append(Run.open(tmp_path / name))
    found = compare(*runs, limit=0.03)
    assert found.gate is not None
    assert found.gate.exit_code == 4
    assert found.stages_reason == "too few steady windows in A and B"


@pytest.mark.parametrize(
    ("ratio", "code"),
    [
        ((1.00, 0.99, 1.01), 0),  # within the limit, noise included
        ((0.985, 0.96, 1.01), 0),  # noise reaches past the limit, but is smaller than it
        ((0.98, 0.975, 0.985), 0),  # slower beyond noise, within the limit
        ((0.90, 0.88, 0.92), 3),
        ((0.96, 0.93, 0.99), 3),  # beyond noise, and past the limit by the best estimate
        ((0.94, 0.85, 1.03), 4),  # looks slower, noise as large
        ((0.99, 0.90, 1.08), 4),  # noise would hide a loss of the limit's size
        ((1.20, 0.98, 1.42), 0),  # noisy, but surely not slower by the limit
        (None, 4),
    ],
)
def test_the_gate(ratio: tuple[float, float, float] | None, code: int) -> None:
    gate = judge(None if ratio is None else Ratio(*ratio), None if ratio else "too short", 0.03)
    assert gate.exit_code == code
    assert gate.reason


def test_the_interval_covers_the_true_ratio_about_as_often_as_it_says(tmp_path: Path) -> None:
    """Windows with known rates: 0.9 of the intervals should hold the true ratio; 8 of 12 is the alarm."""
    covered = 0
    for seed in range(12):
        generator = np.random.default_rng(seed)
        runs = []
        for name, mean_s in (("a", 1.0), ("b", 1.1)):
            path = tmp_path / f"{seed}{name}"
            builder, now = RunBuilder(path), 0.0
            for window in range(40):
                now += mean_s * max(generator.normal(1.0, 0.1), 0.3)
                builder.window(window, now, 1000)
            builder.finish(workload=work)
            runs.append(Run.open(path))
        ratio = compare(*runs).ratio
        assert ratio is not None
        covered += ratio.low <= 1 / 1.1 <= ratio.high
    assert covered >= 8
