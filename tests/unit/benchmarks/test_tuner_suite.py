"""Simulated tuning problems are what they say: memory, noise, no trivial optimum, nothing given away."""

from __future__ import annotations

import dataclasses
from collections import Counter
from functools import cache
from typing import Any

import numpy as np
import pytest

from autotune.telemetry import Failed, FailureKind, Telemetry, find_nonsense
from benchmarks.tuner_boxes import draw_box, draw_job, tuned_host
from benchmarks.tuner_memory import jitter_share
from benchmarks.tuner_physics import run_batches, time_stages
from benchmarks.tuner_quirks import Cliff, find_quirks, flat, rough
from benchmarks.tuner_suite import (
    Problem,
    budget,
    depth,
    development,
    held_out,
    held_out_next,
    lay_columns,
    preset,
    sets,
    split,
)

looked_at = [(kind, seed) for kind in ("normal", "hard") for seed in range(8)]


@cache
def problem(kind: str, seed: int) -> Problem:
    return Problem(kind, seed)


def safe_rows(given: Problem) -> list[int]:
    return [int(row) for row in np.flatnonzero(~given.can_fail)]


def test_the_sets_share_no_problem_with_those_held_out() -> None:
    assert not set(development) & {*held_out, *held_out_next}
    assert not set(held_out) & set(held_out_next)
    assert {name for name, (_, seeds) in sets.items() if seeds is held_out} == {
        "heldout-normal",
        "heldout-hard",
    }
    assert len(development) >= 20
    assert len(held_out) >= 20
    assert len(held_out_next) >= 20


def test_a_kind_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="easy"):
        Problem("easy", 0)


@pytest.mark.parametrize(("kind", "seed"), looked_at)
def test_a_problem_has_the_size_and_the_memory_that_it_should(kind: str, seed: int) -> None:
    given = problem(kind, seed)
    assert 1000 <= len(given.configurations) <= 3200
    assert given.gpus in (4, 8)
    out = (given.fullness > 1).mean()
    assert 0.08 < out < 0.22
    assert np.isfinite(given.rates).all()
    assert (given.rates > 0).all()
    assert given.worth.max() == 1
    assert not given.can_fail[given.row(given.baseline)]


def test_about_fifteen_of_a_hundred_configurations_run_out_of_memory() -> None:
    shares = [(problem(kind, seed).fullness > 1).mean() for kind, seed in looked_at]
    assert 0.12 < np.mean(shares) < 0.18


def test_the_best_configuration_is_at_no_corner_that_one_could_name_before() -> None:
    best = [
        given.configurations[int(given.worth.argmax())] for given in (problem(*each) for each in looked_at)
    ]
    for knob, fewest in ((split, 4), (budget, 4), (preset, 2), (depth, 2)):
        count = Counter(values[knob] for values in best)
        assert len(count) >= fewest, knob
        assert max(count.values()) < 0.7 * len(best), knob


def test_good_configurations_are_few_and_not_only_one_kind_of_luck() -> None:
    good = [float((problem(kind, seed).worth >= 0.98).mean()) for kind, seed in looked_at]
    assert max(good) < 0.1
    assert np.median(good) < 0.02
    hard = [share for (kind, _), share in zip(looked_at, good, strict=True) if kind == "hard"]
    normal = [share for (kind, _), share in zip(looked_at, good, strict=True) if kind == "normal"]
    assert np.median(hard) < np.median(normal)


def test_the_same_seed_is_the_same_problem_with_the_same_runs() -> None:
    one, other = Problem("hard", 5), Problem("hard", 5)
    assert one.configurations == other.configurations
    assert (one.rates == other.rates).all()
    values = one.configurations[safe_rows(one)[7]]
    runs = [given.runner().measure(values) for given in (one, other)]
    assert runs[0] == runs[1]
    runner = one.runner()
    assert runner.measure(values) == runs[0]
    assert runner.measure(values) != runs[0]


def test_what_a_run_shows_does_not_depend_on_what_ran_before() -> None:
    given = problem("normal", 3)
    first, second = (given.configurations[row] for row in safe_rows(given)[10:12])
    alone, after = given.runner(), given.runner()
    after.measure(first)
    assert alone.measure(second) == after.measure(second)


def test_noise_between_runs_is_three_to_five_percent_with_slow_ones() -> None:
    for kind, seed in looked_at[::5]:
        given = problem(kind, seed)
        row = safe_rows(given)[3]
        runner = given.runner()
        runs = [runner.measure(given.configurations[row]) for _ in range(300)]
        logs = np.log([run.tokens_per_s / given.rates[row] for run in runs if isinstance(run, Telemetry)])
        middle = np.subtract(*np.quantile(logs, [0.75, 0.25])) / 1.349  # of what slow ones leave alone
        assert 0.024 < middle < 0.062
        assert abs(np.median(logs)) < 0.012
        assert (logs < -0.15).sum() > (logs > 0.15).sum()


def test_an_interleaved_run_compares_to_one_percent() -> None:
    given = problem("hard", 1)
    rows = [row for row in safe_rows(given) if given.configurations[row][split] == given.baseline[split]]
    ours, theirs = given.configurations[rows[0]], given.configurations[rows[40]]
    truth = np.log(given.rates[rows[0]] / given.rates[rows[40]])
    runner = given.runner()
    ratios = []
    for _ in range(200):
        run = runner.measure(ours, theirs)
        assert isinstance(run, Telemetry)
        assert run.beside is not None
        assert run.beside.values == theirs
        ratios.append(run.beside.log_ratio - truth)
    assert 0.008 < np.std(ratios) < 0.012
    assert abs(np.mean(ratios)) < 0.003


def test_splits_cannot_be_interleaved_nor_what_may_fail_nor_where_the_runner_cannot() -> None:
    given = problem("hard", 1)
    safe = given.configurations[safe_rows(given)[0]]
    other = next(
        given.configurations[row]
        for row in safe_rows(given)
        if given.configurations[row][split] != safe[split]
    )
    full = next(
        given.configurations[row]
        for row in np.flatnonzero(given.can_fail)
        if given.configurations[row][split] == safe[split]
    )
    for beside, paired in ((other, True), (full, True), (safe, False)):
        run = given.runner(paired=paired).measure(safe, beside)
        assert isinstance(run, Telemetry)
        assert run.beside is None


def test_memory_runs_out_always_or_sometimes_or_never() -> None:
    given = problem("normal", 7)
    over = given.fullness > 1
    edge = given.can_fail & ~over
    assert edge.any()
    runner = given.runner()
    for rows, low, high in ((over, 1.0, 1.0), (~given.can_fail, 0.0, 0.0), (edge, 0.02, 0.98)):
        chosen = np.flatnonzero(rows)[:40]
        failed = []
        for row in chosen:
            run = runner.measure(given.configurations[row])
            failed.append(isinstance(run, Failed))
            if isinstance(run, Failed):
                assert run.kind is FailureKind.out_of_memory
                assert all(each.peak_bytes <= (each.limit_bytes or 0) for each in run.memory.values())
        assert low <= np.mean(failed) <= high


def test_a_soak_finds_what_may_fail() -> None:
    given = problem("normal", 7)
    for row in np.flatnonzero(given.can_fail)[:40]:
        assert isinstance(given.runner().measure(given.configurations[row], soak=True), Failed)


def test_peaks_are_what_is_needed_and_plans_are_near_but_wrong() -> None:
    given = problem("normal", 4)
    off = []
    for row in safe_rows(given)[::60]:
        run = given.runner().measure(given.configurations[row])
        assert isinstance(run, Telemetry)
        shares = [each.peak_bytes / (each.limit_bytes or 1) for each in run.memory.values()]
        assert given.fullness[row] <= max(shares) <= given.fullness[row] * (1 + jitter_share)
        off += [(each.planned_bytes or 0) / each.peak_bytes - 1 for each in run.memory.values()]
    assert max(abs(each) for each in off) < 0.25
    assert max(abs(each) for each in off) > 0.02


def numbers_in(figures: Any) -> list[float]:
    if isinstance(figures, dict):
        return [number for each in figures.values() for number in numbers_in(each)]
    if isinstance(figures, list | tuple):
        return [number for each in figures for number in numbers_in(each)]
    return [float(figures)] if isinstance(figures, int | float) else []


@pytest.mark.parametrize(("kind", "seed"), looked_at[::3])
def test_no_run_tells_more_than_a_run_could(kind: str, seed: int) -> None:
    """No rate without noise, nothing of the best one, and every work of a stage with noise of its own."""
    given = problem(kind, seed)
    best = given.rates[int(given.worth.argmax())]
    runner = given.runner()
    for row in safe_rows(given)[:: len(given.configurations) // 20]:
        run = runner.measure(given.configurations[row])
        assert isinstance(run, Telemetry)
        assert find_nonsense(run) is None
        group = next(group for group in given.groups if row in group.rows)
        at = group.rows.index(row)
        secrets = [best, given.rates[row], given.worth[row], group.stages.target_s[at]]
        secrets += [group.stages.drafter_s[at], given.fullness[row], group.stages.load_s[at]]
        told = numbers_in(dataclasses.asdict(run))
        assert told
        assert not [s for s in secrets for number in told if abs(number / s - 1) < 1e-9]
        assert {"prefetch", "target", "drafter"} == set(run.stages)


def test_waits_tell_which_stage_is_the_limit() -> None:
    given = problem("normal", 1)
    waits = []
    for group in given.groups:
        if group.columns.colocated or group.columns.lockstep:
            continue
        busy = [
            group.stages.target_s / group.columns.targets,
            group.stages.drafter_s / group.columns.drafters,
        ]
        target_bound = group.columns.of("peer") & (group.columns.depth == 4) & (busy[0] > 1.5 * busy[1])
        waits += (group.shown.drafter_get > group.shown.target_put)[target_bound].tolist()
    assert np.mean(waits) > 0.95
    assert len(waits) > 50


def test_without_quirks_deeper_queues_and_straight_ways_are_never_slower() -> None:
    draw = np.random.default_rng(5)
    box = draw_box(draw, 8)
    job = draw_job(draw, box)
    job = dataclasses.replace(job, peer_tax=0.0, pinned_tax=0.0)
    box = tuned_host(draw, box, job)
    start = {split: "5-3", budget: 16384, preset: "peer", depth: 1, "pipeline.prefetch_depth": 4}
    wanted = [start, {**start, depth: 4}, {**start, preset: "shared"}, {**start, preset: "host"}]
    columns = lay_columns(wanted)
    stages = time_stages(box, job, columns, flat(columns), np.zeros(len(wanted)))
    work = np.exp(draw.normal(0, 0.2, (60, 3)))
    rates = run_batches(columns, stages, work).tokens_per_s
    assert rates[1] >= rates[0] * 0.999
    assert rates[2] <= rates[0] * 1.02
    assert rates[3] < rates[0]


def test_only_hard_problems_have_cliffs_and_roughness() -> None:
    smooth, hard = problem("normal", 2), problem("hard", 2)
    assert smooth.cliffs == ()
    assert hard.cliffs
    change = np.log(hard.rates / smooth.rates)
    spread = np.std([change[row] for row in safe_rows(hard)])
    assert spread > rough / 6


def test_a_cliff_begins_where_it_is_said_to() -> None:
    start = {split: "5-3", budget: 16384, preset: "peer", depth: 1, "pipeline.prefetch_depth": 4}
    wanted = [
        start,
        {**start, budget: 32768},
        {**start, budget: 65536},
        {**start, budget: 65536, preset: "host"},
    ]
    cliffs = (
        Cliff("target", ((budget, 32768), (preset, "peer")), 2.0),
        Cliff("copy", ((preset, "host"),), 9.0),
    )
    quirks = find_quirks(cliffs, 5, lay_columns(wanted), wanted)
    assert quirks.target == pytest.approx([1, 2, 2, 1], rel=rough)
    assert quirks.drafter == pytest.approx([1, 1, 1, 1], rel=rough)
    assert quirks.copy.tolist() == [1, 1, 1, 9]
    assert len(set(quirks.target / [1, 2, 2, 1])) == 4  # rough besides


def test_every_cliff_of_a_hard_problem_is_met_somewhere() -> None:
    for kind, seed in looked_at:
        given = problem(kind, seed)
        for cliff in given.cliffs:
            beyond = sum(cliff.meets(values) for values in given.configurations)
            assert 0 < beyond < len(given.configurations), (seed, cliff)
            assert cliff.factor > 1.04


def test_what_a_tuner_cannot_be_told_becomes_the_nearest_that_is_allowed() -> None:
    given = problem("normal", 1)
    asked = {**given.baseline, split: "colocated-8", budget: 65536, preset: "host"}
    found = given.nearest(asked)
    assert given.why_not(found) is None
    assert (found[split], found[preset]) == ("colocated-8", "peer")
    assert given.nearest(given.baseline) == given.baseline


def test_a_study_sees_the_same_space() -> None:
    given = problem("hard", 1)
    space = given.space()
    assert list(space.configurations) == list(given.configurations)
    assert space.baseline == given.baseline
    assert space.setting(given.baseline) is not None
