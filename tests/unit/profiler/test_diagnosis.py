"""The diagnosis names what was planted, accuses no healthy run, and its costs are what remedies give back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dflash.contract.config import TrainConfig
from profiler.diagnosis import diagnose, rank
from profiler.finding import Diagnosis, Finding
from profiler.run import Run
from profiler.timeline import Timeline
from tests.played_pipeline import Play, play

Settings = dict[str, Any]
Diagnosed = Callable[..., Diagnosis]

story_1: Settings = {
    "targets": 2,
    "drafters": 2,
    "preset": "shared",
    "depth": 20,
    "backward_s": 0.35,
    "windows": 60,
}
story_3: Settings = {
    "targets": 5,
    "drafters": 3,
    "preset": "host",
    "depth": 60,
    "backward_s": 0.4,
    "windows": 60,
}
host: Settings = {"preset": "host", "depth": 2}

# fault: what is the same at every strength, the knob of the fault, three strengths, its remedy
faults: dict[str, tuple[Settings, str, tuple[float, float, float], float]] = {
    "shared-queue-cross-device": (story_1, "away_copy_s", (1.8, 3.2, 6.0), 0.0),
    "sync-d2h-on-critical-path": (host, "target_copy_s", (0.15, 0.3, 1.0), 0.0),
    "host-staging-queue-too-deep": (story_3, "drafter_copy_s", (0.35, 0.6, 1.5), 0.0),
    "h2d-on-drafter-critical-path": (host | {"backward_s": 0.3}, "drafter_copy_s", (0.1, 0.3, 0.9), 0.0),
    "prefetch-starvation": ({}, "pack_s", (0.4, 0.6, 1.2), 0.02),
    "drafter-too-slow": ({}, "backward_s", (0.38, 0.6, 1.2), 0.2),
    "gradient-sync-wait": (
        {"drafters": 3, "backward_s": 0.95, "optimizer_s": 0.0, "windows": 60},
        "batches_per_window",
        (5, 7, 4),
        60,
    ),
}
forbidden = {  # by the labels of the field scenarios
    "shared-queue-cross-device": {"drafter-too-slow"},
    "drafter-too-slow": {"shared-queue-cross-device", "target-bound-healthy"},
    "host-staging-queue-too-deep": {"drafter-too-slow", "prefetch-starvation"},
    "prefetch-starvation": {"sync-d2h-on-critical-path", "drafter-too-slow"},
}
fault_names = sorted(faults)


@pytest.fixture(scope="module")
def diagnosed(tmp_path_factory: pytest.TempPathFactory) -> Diagnosed:
    """Plays a run and diagnoses it; the same settings are played once."""
    done: dict[str, Diagnosis] = {}

    def play_and_diagnose(**settings: Any) -> Diagnosis:
        key = repr(sorted(settings.items()))
        if key not in done:
            path = play(tmp_path_factory.mktemp("played") / "run", **settings)
            done[key] = diagnose(Timeline.of(Run.open(path)))
        return done[key]

    return play_and_diagnose


def supported(diagnosis: Diagnosis) -> list[str]:
    return [finding.cause for finding in diagnosis.findings if finding.supported]


def found(diagnosis: Diagnosis, cause: str) -> Finding:
    (finding,) = (f for f in diagnosis.findings if f.cause == cause)
    return finding


def evidence(finding: Finding, name: str) -> float:
    (item,) = (item for item in finding.evidence if item.name == name)
    assert item.value is not None
    return item.value


@pytest.mark.parametrize(("strength", "seed"), [(0, 0), (1, 1), (2, 2)])
@pytest.mark.parametrize("cause", fault_names)
def test_a_planted_fault_is_named_first(diagnosed: Diagnosed, cause: str, strength: int, seed: int) -> None:
    settings, knob, strengths, _ = faults[cause]
    diagnosis = diagnosed(**settings, **{knob: strengths[strength]}, seed=seed)
    named = supported(diagnosis)
    assert named[:1] == [cause], diagnosis.headline
    assert not forbidden.get(cause, set()) & set(named)
    assert "target-bound-healthy" not in named
    primary = found(diagnosis, cause)
    assert primary.remedy is not None
    assert diagnosis.headline == primary.summary
    lo_s, hi_s = primary.range_s
    assert 0 <= lo_s < hi_s


@pytest.mark.parametrize("cause", fault_names)
def test_the_cost_is_what_the_remedy_gives_back(diagnosed: Diagnosed, cause: str) -> None:
    settings, knob, strengths, cured = faults[cause]
    sick = diagnosed(**settings, **{knob: strengths[1]}, seed=1)
    well = diagnosed(**settings, **{knob: cured}, seed=1)
    before, after = sick.throughput.tokens_per_s, well.throughput.tokens_per_s
    cost = found(sick, cause).measured_cost_share
    assert before is not None
    assert after is not None
    assert cost is not None
    assert cost == pytest.approx(1 - before / after, abs=0.06)


@pytest.mark.parametrize("cause", fault_names)
def test_every_remedy_is_a_configuration_that_holds(diagnosed: Diagnosed, cause: str) -> None:
    settings, knob, strengths, _ = faults[cause]
    played = Play(**settings, **{knob: strengths[1]}, seed=1)
    remedy = found(diagnosed(**settings, **{knob: strengths[1]}, seed=1), cause).remedy
    assert remedy is not None
    assert played.config.replacing(remedy.knobs) != played.config or not remedy.knobs


@pytest.mark.parametrize("seed", range(12))
def test_no_healthy_run_is_accused(diagnosed: Diagnosed, seed: int) -> None:
    targets, drafters = [(3, 1), (1, 1), (5, 2), (2, 1)][seed % 4]
    occupied = [0.4, 0.7, 0.9, 1.0, 1.04][seed % 5]  # of the targets' pace, up to balanced and just beyond
    settings: Settings = {
        "targets": targets,
        "drafters": drafters,
        "backward_s": occupied * drafters / targets,
        "optimizer_s": 0.0,
        "batches_per_window": 12,
        "target_copy_s": 0.03 * (seed % 2),
        "preset": "host" if seed % 2 else "peer",
        "link_copy_s": 0.3,
        "jitter": [0.05, 0.15, 0.3][seed % 3],
        "windows": 25,
        "seed": seed,
    }
    diagnosis = diagnosed(**settings)
    accused = [f.cause for f in diagnosis.findings if f.supported and f.is_sickness]
    assert accused == [], diagnosis.why
    if occupied < 1:
        assert supported(diagnosis) == ["target-bound-healthy"], diagnosis.why


def test_story_1_names_the_shared_queue_with_shares_and_seconds(diagnosed: Diagnosed) -> None:
    diagnosis = diagnosed(**story_1, away_copy_s=3.2)
    finding = found(diagnosis, "shared-queue-cross-device")
    assert finding.supported
    assert evidence(finding, "takes from another device") == pytest.approx(0.5, abs=0.1)
    assert evidence(finding, "one move") == pytest.approx(3.2, rel=0.1)
    assert evidence(finding, "targets waiting for room") > 0.3
    assert finding.remedy is not None
    assert finding.remedy.knobs == {"transport.preset": "peer", "transport.depth": 2}
    rejected = found(diagnosis, "drafter-too-slow")
    assert rejected.verdict == "rejected"
    assert rejected.measured_cost_share == 0.0  # without the moves the drafters keep up


def test_story_1_is_told_while_the_queue_still_fills(diagnosed: Diagnosed) -> None:
    diagnosis = diagnosed(**(story_1 | {"depth": 400, "windows": 24}), away_copy_s=3.2)
    assert supported(diagnosis)[:1] == ["shared-queue-cross-device"], diagnosis.headline


def test_story_2_names_the_copy_by_rate_and_ends_healthy(diagnosed: Diagnosed) -> None:
    sick = diagnosed(**host, target_copy_s=0.3, gather_s=0.05, backward_s=0.05)
    finding = found(sick, "sync-d2h-on-critical-path")
    assert finding.supported
    assert evidence(finding, "rate of the targets' copies") == pytest.approx(0.02 / 0.3, rel=0.1)
    assert evidence(finding, "drafters waiting for targets") > 0.7
    assert finding.predicted_cost_s == pytest.approx(0.2)  # 20 MB at the declared 0.1 GB/s
    well = diagnosed(gather_s=0.05, backward_s=0.05)
    assert supported(well) == ["target-bound-healthy"]
    assert well.capacities.limit == "target"
    assert well.capacities.pipeline_efficiency == pytest.approx(1.0, abs=0.05)


def test_story_3_adds_up_the_memory(diagnosed: Diagnosed) -> None:
    diagnosis = diagnosed(**story_3, drafter_copy_s=0.9, rest_bytes=3e8)
    finding = found(diagnosis, "host-staging-queue-too-deep")
    assert supported(diagnosis) == ["host-staging-queue-too-deep"]
    staged = evidence(finding, "batches waiting") * evidence(finding, "one batch of hidden states")
    assert staged == pytest.approx(60 * 20e6, rel=0.1)
    assert evidence(finding, "waiting in all") == pytest.approx(staged)
    assert evidence(finding, "resident memory") == pytest.approx(60 * 20e6 + 3e8, rel=0.1)
    assert evidence(finding, "resident memory besides") == pytest.approx(3e8, rel=0.3)


def test_memory_that_was_not_sampled_is_said_and_costs_no_verdict(diagnosed: Diagnosed) -> None:
    finding = found(diagnosed(**story_3, drafter_copy_s=0.9, rest_bytes=0.0), "host-staging-queue-too-deep")
    assert finding.supported
    (item,) = (item for item in finding.evidence if item.name == "resident memory")
    assert (item.value, item.reason) == (None, "host memory was not sampled")


@pytest.mark.parametrize("windows", [1, 2, 8])
def test_too_little_data_names_nothing_else(diagnosed: Diagnosed, windows: int) -> None:
    diagnosis = diagnosed(windows=windows, warmup_windows=0, pack_s=1.0)
    assert supported(diagnosis) == ["not-enough-data"]
    assert {f.verdict for f in diagnosis.findings if f.cause != "not-enough-data"} == {"not_enough_evidence"}
    assert diagnosis.throughput.tokens_per_s is None
    assert all(f.measured_cost_share is None for f in diagnosis.findings)


def test_an_empty_run_is_diagnosed_too(tmp_path: Path) -> None:
    from tests.run_builder import RunBuilder

    diagnosis = diagnose(Timeline.of(Run.open(RunBuilder(tmp_path / "run", TrainConfig()).finish())))
    assert supported(diagnosis) == ["not-enough-data"]
    assert diagnosis.closing_sums == ()


def test_the_dearer_of_two_causes_comes_first(diagnosed: Diagnosed) -> None:
    # Drafters are slow by their work, and copy from the host a little as well.
    diagnosis = diagnosed(**host, backward_s=0.7, drafter_copy_s=0.15)
    assert supported(diagnosis) == ["drafter-too-slow", "h2d-on-drafter-critical-path"]
    costs = [f.measured_cost_share or 0.0 for f in diagnosis.findings if f.supported]
    assert costs == sorted(costs, reverse=True)


def test_copies_on_both_sides_are_charged_to_the_side_that_limits(diagnosed: Diagnosed) -> None:
    both = {"preset": "host", "targets": 1, "drafters": 1, "target_copy_s": 0.5, "drafter_copy_s": 0.5}
    limited_by_targets = diagnosed(**both, backward_s=0.6)
    limited_by_drafters = diagnosed(**both, backward_s=1.4)
    assert supported(limited_by_targets) == ["sync-d2h-on-critical-path"]
    assert "h2d-on-drafter-critical-path" in supported(limited_by_drafters)
    assert "sync-d2h-on-critical-path" not in supported(limited_by_drafters)


def test_a_device_moves_only_where_it_pays(diagnosed: Diagnosed) -> None:
    pays = found(diagnosed(backward_s=1.2), "drafter-too-slow").remedy
    pays_not = found(diagnosed(backward_s=0.38), "drafter-too-slow").remedy
    assert pays is not None
    assert pays.knobs == {"pipeline.split": "2-2"}
    assert pays_not is not None
    assert pays_not.knobs == {}


def test_idle_drafters_are_offered_to_the_targets(diagnosed: Diagnosed) -> None:
    finding = found(diagnosed(targets=3, drafters=2, backward_s=0.1), "target-bound-healthy")
    assert finding.remedy is not None
    assert finding.remedy.knobs == {"pipeline.split": "4-1"}


def test_an_unexplained_loss_accuses_nobody(tmp_path: Path) -> None:
    # Peer copies on the target's own thread: no rule knows them.
    path = play(tmp_path / "run", target_copy_s=0.5, preset="host")
    run = Run.open(path)
    events = run.events.assign(path=run.events["path"].astype(object).replace("pageable", "peer"))
    diagnosis = diagnose(
        Timeline.of(Run(path, run.manifest, run.config_values, run.config, events, run.samples))
    )
    assert supported(diagnosis) == []
    assert "67 %" in diagnosis.headline
    assert "targets: own copies 33 %" in diagnosis.why


def test_unread_depths_lower_confidence_and_stay_unknown(tmp_path: Path) -> None:
    path = play(tmp_path / "run", pack_s=0.6)
    run = Run.open(path)
    whole = diagnose(Timeline.of(run))
    events = run.events[run.events["name"] != "depth"]
    blind = diagnose(Timeline.of(Run(path, run.manifest, run.config_values, run.config, events, run.samples)))
    assert supported(blind) == supported(whole) == ["prefetch-starvation"]
    assert found(blind, "prefetch-starvation").confidence < found(whole, "prefetch-starvation").confidence
    (item,) = (i for i in found(blind, "prefetch-starvation").evidence if "q_pre is nearly" in i.name)
    assert item.value is None
    assert item.reason


def test_who_holds_up_whom_is_seen_without_depths(tmp_path: Path) -> None:
    settings: Settings = {"targets": 1, "target_copy_s": 0.5, "drafter_copy_s": 0.5, "backward_s": 1.4}
    path = play(tmp_path / "run", **host, **settings)
    run = Run.open(path)
    events = run.events[run.events["name"] != "depth"]
    blind = diagnose(Timeline.of(Run(path, run.manifest, run.config_values, run.config, events, run.samples)))
    assert "h2d-on-drafter-critical-path" in supported(blind)
    assert found(blind, "sync-d2h-on-critical-path").verdict == "rejected"


def test_closing_sums_tell_every_thread_in_whole(diagnosed: Diagnosed) -> None:
    diagnosis = diagnosed(**host, target_copy_s=0.3)
    assert [(s.stage, s.index) for s in diagnosis.closing_sums] == [
        ("prefetch", 0), ("target", 0), ("target", 1), ("target", 2), ("drafter", 0),
    ]  # fmt: skip
    for thread in diagnosis.closing_sums:
        assert sum(part.seconds for part in thread.parts) == pytest.approx(thread.range_s, abs=1e-9)
        assert sum(part.share for part in thread.parts) == pytest.approx(1.0)
    assert [part.name for part in diagnosis.closing_sums[1].parts][:2] == ["forward", "copy pageable"]


def test_ranking_puts_verdict_before_cost(diagnosed: Diagnosed) -> None:
    findings = list(diagnosed(pack_s=0.6).findings)
    assert rank(findings[::-1])[0].cause == "prefetch-starvation"
    order = [f.verdict for f in rank(findings[::-1])]
    assert order == sorted(order, key=["supported", "not_enough_evidence", "rejected"].index)


def test_a_throttled_drafter_comes_before_its_own_slowness(diagnosed: Diagnosed) -> None:
    finding = replace(diagnosed(pack_s=0.6).findings[0], verdict="supported", range_s=(0.0, 100.0))
    slow = replace(finding, cause="drafter-too-slow", measured_cost_share=0.4)
    held = replace(finding, cause="one-gpu-throttled", measured_cost_share=0.3)
    assert [f.cause for f in rank([slow, held])] == ["one-gpu-throttled", "drafter-too-slow"]
    later = replace(held, range_s=(100.0, 200.0))
    assert [f.cause for f in rank([later, slow])] == ["drafter-too-slow", "one-gpu-throttled"]
    links = replace(finding, cause="link-bound", measured_cost_share=0.4)
    moved = replace(finding, cause="shared-queue-cross-device", measured_cost_share=0.2)
    assert [f.cause for f in rank([links, moved])] == ["shared-queue-cross-device", "link-bound"]


def test_a_prefetch_that_packed_everything_early_is_no_limit(diagnosed: Diagnosed) -> None:
    diagnosis = diagnosed(**host, target_copy_s=0.3, prefetch_depth=500, windows=30)
    assert supported(diagnosis) == ["sync-d2h-on-critical-path"], diagnosis.headline
