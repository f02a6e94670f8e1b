"""From batches to costs: lines through good, wild and uniform batches, and runs on shared cores."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.forecast_coverage import draw_case, observe_played, play_truth
from profiler.forecast.fitting import fit_line, fit_model, gpu_sharing_gain
from profiler.forecast.model import Line


def test_a_line_is_found_under_noise_and_wild_batches() -> None:
    random = np.random.default_rng(0)
    tokens = random.uniform(200, 2000, 300)
    seconds = (0.1 + 0.0005 * tokens) * random.normal(1.0, 0.03, 300)
    seconds[::50] *= 5.0  # stalls: a mean of 1.08 times as long
    fit = fit_line(tokens, seconds)
    assert fit.line.at(1000) == pytest.approx(1.08 * 0.6, rel=0.05)
    assert fit.line.fixed_s / fit.line.slope_s == pytest.approx(200.0, rel=0.3)
    assert 0.1 < fit.noise < 1.0  # the stalls are noise, too


def test_uniform_batches_leave_the_split_open_and_the_mean_sure() -> None:
    random = np.random.default_rng(1)
    tokens = np.full(200, 1000.0)
    seconds = random.normal(0.5, 0.02, 200)
    fit = fit_line(tokens, seconds)
    assert fit.line.at(1000) == pytest.approx(0.5, rel=0.01)
    at_twice = np.array([line.at(2000) for line in fit.others])
    assert at_twice.std() / at_twice.mean() > 0.05
    assert np.std([line.at(1000) for line in fit.others]) < 0.01


def test_neither_part_is_negative() -> None:
    tokens = np.array([100.0, 200.0, 300.0, 400.0] * 5)
    falling = fit_line(tokens, 1.0 - tokens / 1000).line
    steep = fit_line(tokens, tokens / 100 - 0.9).line
    assert falling.slope_s == 0.0
    assert falling.fixed_s > 0
    assert steep.fixed_s == 0.0
    assert steep.slope_s > 0


def test_no_batches_cost_nothing() -> None:
    fit = fit_line(np.zeros(0), np.zeros(0))
    assert (fit.line.at(100.0), fit.noise) == (0.0, 0.0)


def test_the_costs_of_a_played_pipeline_come_back() -> None:
    for seed in (1, 2, 3):
        case = replace(draw_case(seed), bend=0.0)
        model = fit_model([observe_played(case, play_truth(case, case.now, seed))]).model
        assert model.forward.at(1000) == pytest.approx(case.truth.forward.at(1000), rel=0.04)
        assert model.backward.at(1000) == pytest.approx(case.truth.backward.at(1000), rel=0.04)
        assert model.noise["target"] == pytest.approx(case.truth.noise["target"], rel=0.4)


def test_work_slowed_by_its_neighbours_is_fitted_as_if_alone() -> None:
    case = draw_case(4)
    case = replace(case, bend=0.0, truth=replace(case.truth, cores=2.0))
    seen = replace(observe_played(case, play_truth(case, case.now, 4)), cores=2.0)
    model = fit_model([seen]).model
    slowed = float(np.mean(seen.samples["target"].seconds))
    assert model.forward.at(1000) <= slowed
    assert model.forward.at(1000) == pytest.approx(case.truth.forward.at(1000), rel=0.12)


def test_gradients_never_summed_take_a_copy_on_gpus_and_nothing_on_logical_devices() -> None:
    case = replace(draw_case(1), bend=0.0)
    seen = replace(observe_played(case, play_truth(case, case.now, 1)), merge_s=None, gradient_bytes=2e9)
    links = {"peer": Line(0.001, 1e-10)}
    seen = replace(seen, links=links, measured_hops=frozenset(), emulated=False)
    assert fit_model([seen]).model.merge_s == pytest.approx(0.201)
    assert fit_model([replace(seen, emulated=True)]).model.merge_s == 0.0
    assert fit_model([replace(seen, links={})]).model.merge_s == 0.0


def test_a_gpu_that_is_kept_busy_takes_as_long_as_there_are_tokens() -> None:
    case = replace(draw_case(1), bend=0.0)
    seen = observe_played(case, play_truth(case, case.now, 1))
    samples = {
        name: replace(part, tokens=np.full_like(part.tokens, 1000.0)) for name, part in seen.samples.items()
    }
    on_gpu = replace(seen, samples=samples, emulated=False)
    for share, fixed in ((0.5, 0.04), (0.95, 0.2), (None, 0.2)):
        told = {} if share is None else {"target": share, "drafter": share}
        forward = fit_model([replace(on_gpu, enqueueing=told)]).model.forward
        assert forward.fixed_s / forward.at(1000) == pytest.approx(fixed, abs=0.01)


def test_batches_on_one_gpu_count_for_what_they_would_take_alone() -> None:
    case = replace(draw_case(1), bend=0.0)
    now = replace(case.now, target_places=(0,) * case.now.targets, drafter_places=(0,) * case.now.drafters)
    seen = replace(observe_played(case, play_truth(case, case.now, 1)), setting=now)
    beside = {name: replace(part, beside=np.ones_like(part.tokens)) for name, part in seen.samples.items()}
    alone = {name: replace(part, beside=np.zeros_like(part.tokens)) for name, part in seen.samples.items()}
    crowded, free = (fit_model([replace(seen, samples=s)]).model for s in (beside, alone))
    assert crowded.forward.at(1000) / free.forward.at(1000) == pytest.approx(gpu_sharing_gain / 2)
    assert crowded.backward.at(1000) / free.backward.at(1000) == pytest.approx(gpu_sharing_gain / 2)
    assert crowded.pack == free.pack
