"""Causes are named by their kind: other rates, sizes, names, noise, strengths than the public files have."""

from __future__ import annotations

from pathlib import Path

import pytest

from profiler.diagnosis import diagnose
from profiler.finding import Diagnosis
from profiler.metrics_trace.importer import import_metrics
from profiler.run import Run
from profiler.timeline import Timeline
from tests import scenario_variants as variants
from tests.scenario_variants import Rows, labels, load

sick = sorted(set(labels) - {"s14", "s16"})
long_ones = sorted(set(labels) - {"s16"})


def diagnosed(rows: Rows, path: Path) -> Diagnosis:
    import_metrics(variants.write(rows, path / "metrics.jsonl"), path / "run")
    return diagnose(Timeline.of(Run.open(path / "run")))


def check_label(diagnosis: Diagnosis, name: str) -> None:
    named = [finding.cause for finding in diagnosis.findings if finding.supported]
    assert named[:1] == [labels[name]["primary"]], diagnosis.headline
    assert not set(named) & set(labels[name]["must_not_name"])


def check_range(diagnosis: Diagnosis, cause: str, begin_s: float, end_s: float, whole_s: float) -> None:
    found = next(f for f in diagnosis.findings if f.cause == cause and f.supported)
    assert found.range_s[0] == pytest.approx(begin_s, abs=0.1 * whole_s)
    assert found.range_s[1] == pytest.approx(end_s, abs=0.1 * whole_s)


ranges = {"s07": (482.0, 600.0), "s08": (0.0, 500.0)}


@pytest.mark.parametrize(("name", "factor"), [(name, (0.2, 5.0)[i % 2]) for i, name in enumerate(long_ones)])
def test_other_rates_and_more_noise(tmp_path: Path, name: str, factor: float) -> None:
    rows = variants.noisy(load(name), 0.08, seed=sick.index(name) if name in sick else 99)
    diagnosis = diagnosed(variants.slower(rows, factor), tmp_path)
    check_label(diagnosis, name)
    begin_s, end_s = (factor * t for t in ranges.get(name, (0.0, 600.0)))
    check_range(diagnosis, labels[name]["primary"], begin_s, end_s, 600 * factor)


blended = ["s02", "s03", "s04", "s05", "s10"]


@pytest.mark.parametrize("name", long_ones)
def test_a_part_of_a_file_of_more_gpus_whose_clock_begins_elsewhere(tmp_path: Path, name: str) -> None:
    """Of those that can be, a stronger variant: weaker ones have a test of their own."""
    part = 1.0 if name == "s07" else 0.4  # its cause comes at the end
    rows = variants.blended(load(name), 1.2) if name in blended else load(name)
    check_label(diagnosed(variants.shifted(variants.larger(rows, 2), 86_400.0, part), tmp_path), name)


@pytest.mark.parametrize("name", blended)
def test_weaker(tmp_path: Path, name: str) -> None:
    check_label(diagnosed(variants.blended(load(name), 0.8), tmp_path), name)


@pytest.mark.parametrize("seed", range(4))
def test_a_healthy_run_is_not_accused(tmp_path: Path, seed: int) -> None:
    rows = variants.noisy(load("s14"), 0.04 + 0.03 * seed, seed)
    diagnosis = diagnosed(variants.slower(rows, 0.3 + 0.5 * seed), tmp_path)
    assert not [finding.cause for finding in diagnosis.findings if finding.supported and finding.is_sickness]


causes = {
    "one-gpu-throttled": [variants.throttled(c) for c in (0.55, 0.75)],  # 0.4: later on, below
    "allocator-fragmentation": [
        variants.fragmented(60, 4, 0.15),
        variants.fragmented(400, 20, 0.5),
        variants.fragmented(0, 10, 0.4),
    ],
    "per-step-scalar-sync": [variants.scalar_sync(s) for s in (2.0, 6.0)],
    "numa-remote-host-buffers": [
        variants.far_buffers(rates, pack_s)
        for rates, pack_s in (((50.0, 49.0, 16.0), 0.7), ((52.0, 24.0, 26.0), 0.9), ((50.0, 8.0, 9.0), 2.5))
    ],
}


@pytest.mark.parametrize(
    ("cause", "number"), [(cause, i) for cause, made in causes.items() for i in range(len(made))]
)
def test_causes_without_a_public_file(tmp_path: Path, cause: str, number: int) -> None:
    diagnosis = diagnosed(causes[cause][number], tmp_path)
    named = [finding.cause for finding in diagnosis.findings if finding.supported]
    assert named[:1] == [cause], diagnosis.headline
    assert (
        "target-bound-healthy" not in named
        or diagnosis.findings[0].range_s[1] - diagnosis.findings[0].range_s[0] < 550
    )
    assert not set(named) & {"drafter-too-slow", "gil-contention", "prefetch-starvation"}


def test_a_gpu_that_is_throttled_later_on_has_its_time(tmp_path: Path) -> None:
    diagnosis = diagnosed(variants.throttled(0.4, onset_s=240.0), tmp_path)
    assert diagnosis.primary is not None
    assert diagnosis.primary.cause == "one-gpu-throttled"
    check_range(diagnosis, "one-gpu-throttled", 240, 600, 600)


def test_fragmentation_has_its_time(tmp_path: Path) -> None:
    check_range(diagnosed(variants.fragmented(200), tmp_path), "allocator-fragmentation", 200, 600, 600)


same_split = ["s02", "s03", "s04", "s05", "s08"]
pairs = [(a, same_split[(i + 1 + i % 3) % 5]) for i, a in enumerate(same_split)]  # each comes first once


@pytest.mark.parametrize(("first", "second"), pairs)
def test_two_causes_in_turn_are_told_with_their_times(tmp_path: Path, first: str, second: str) -> None:
    diagnosis = diagnosed(variants.in_turn(load(first), load(second)), tmp_path)
    wanted = {
        labels[first]["primary"]: (0, 300),
        labels[second]["primary"]: (300, 500 if second == "s08" else 600),
    }
    named = {finding.cause for finding in diagnosis.findings if finding.supported and finding.is_sickness}
    assert named == set(wanted), diagnosis.headline
    for cause, (begin_s, end_s) in wanted.items():
        check_range(diagnosis, cause, begin_s, end_s, 600)


@pytest.mark.parametrize(("name", "part"), [("s02", 0.3), ("s03", 0.7), ("s04", 0.3), ("s05", 0.7)])
def test_a_sickness_that_begins_or_ends_is_told_with_its_time(tmp_path: Path, name: str, part: float) -> None:
    begins = name in {"s02", "s05"}
    in_turn = (load("s14"), load(name), part) if begins else (load(name), load("s14"), 1 - part)
    diagnosis = diagnosed(variants.in_turn(*in_turn), tmp_path)
    begin_s, end_s = (600 * part, 600) if begins else (0, 600 * (1 - part))
    check_range(diagnosis, labels[name]["primary"], begin_s, end_s, 600)
    assert diagnosis.primary is not None
    assert diagnosis.primary.cause == labels[name]["primary"]
