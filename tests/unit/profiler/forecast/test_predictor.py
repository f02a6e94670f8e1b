"""Forecasts of changes: near the truth, with intervals that hold it as often as they say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.forecast_coverage import answer, draw_case, observe_played, play_truth
from profiler.forecast.predictor import Predictor, windows_to_play
from profiler.forecast.setting import Setting


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    case = replace(
        draw_case(3),
        now=Setting(
            target_places=(0,), drafter_places=(1,), path="pageable", token_budget=1000, window_tokens=1
        ),
    )
    return Predictor([observe_played(case, play_truth(case, case.now, 0))])


def test_the_setting_that_was_seen_is_met_exactly(predictor: Predictor) -> None:
    now = predictor.predict(predictor.now)
    assert now.tokens_per_s == pytest.approx(predictor.runs[0].tokens_per_s)
    assert now.ratio == 1.0
    assert now.doubts == ()
    assert now.low < now.tokens_per_s < now.high


def test_each_step_outside_of_what_was_seen_is_said_and_widens(predictor: Predictor) -> None:
    now = predictor.now
    seen = predictor.predict(now)
    for change, words in [
        ({"target_places": (0, 1), "drafter_places": (2,)}, "no run had 2 targets"),
        ({"path": "peer"}, "peer copies were not seen"),
        ({"token_budget": 3000}, "those seen had"),
        ({"lockstep": True}, "lockstep was never seen"),
        ({"drafter_places": (0,)}, "never shared a device"),
    ]:
        then = predictor.predict(replace(now, **change))  # type: ignore[arg-type]
        assert any(words in doubt.text for doubt in then.doubts), words
        assert then.high / then.low > seen.high / seen.low, words


def test_cores_are_doubted_where_there_are_fewer_than_stages(predictor: Predictor) -> None:
    change = replace(predictor.now, target_places=(0, 1), drafter_places=(2,))
    seen = replace(predictor.runs[0], emulated=True)
    many, few = (Predictor([replace(seen, cores=cores)]).predict(change) for cores in (64.0, 2.0))
    own, shared = (next(d for d in one.doubts if "no run had" in d.text) for one in (many, few))
    assert "share 2 CPU cores" in shared.text
    assert "share" not in own.text
    assert shared.deviation == pytest.approx(3 * own.deviation)


def test_gpus_that_waited_for_launches_are_doubted_for_every_other_setting(predictor: Predictor) -> None:
    change = replace(predictor.now, token_budget=3000)
    run = replace(predictor.runs[0], enqueueing={"target": 0.5, "drafter": 0.95})
    bound = Predictor([run], predictor.fit)
    plain, doubted = predictor.predict(change), bound.predict(change)
    told = {doubt.text for doubt in doubted.doubts} - {doubt.text for doubt in plain.doubts}
    assert len(told) == 1
    assert "a drafter's thread enqueued for 95 %" in told.pop()
    assert doubted.high / doubted.low > plain.high / plain.low
    assert bound.predict(bound.now).doubts == ()


def test_a_change_of_pace_is_doubted_on_a_cpu_that_all_stages_need(predictor: Predictor) -> None:
    def said(cores: float, ratio: float) -> list[float]:
        one = Predictor([replace(predictor.runs[0], emulated=True, cores=cores)], predictor.fit)
        one.model = replace(one.model, cores=cores)
        return [doubt.deviation for doubt in one._doubt_pace(ratio)]

    assert said(2.0, 2.0) == said(2.0, 0.5) == [pytest.approx(0.12 * np.log(2))]
    assert said(2.0, 1.02) == said(64.0, 2.0) == []


def test_an_unknown_link_is_taken_as_hidden_and_doubted(predictor: Predictor) -> None:
    blind = Predictor([replace(predictor.runs[0], links={}, measured_hops=frozenset())])
    doubts = blind.predict(replace(blind.now, path="peer")).doubts
    assert any("unknown" in doubt.text for doubt in doubts)


def test_ranking_agrees_with_predicting(predictor: Predictor) -> None:
    settings = [replace(predictor.now, target_places=tuple(range(n)), drafter_places=(n,)) for n in (1, 2, 4)]
    ranked = predictor.rank(settings)
    predicted = [predictor.predict(setting).tokens_per_s for setting in settings]
    assert ranked == pytest.approx(predicted, rel=0.1)


def test_a_second_run_makes_the_split_of_costs_surer() -> None:
    case = draw_case(7)
    half = replace(case.now, token_budget=500)
    first = observe_played(case, play_truth(case, case.now, 0))
    small = observe_played(case, play_truth(case, half, 1))
    second = replace(small, setting=half)
    then = replace(case.now, token_budget=700)
    alone, both = Predictor([first]).predict(then), Predictor([first, second]).predict(then)
    assert not any("those seen had" in doubt.text for doubt in both.doubts)
    assert both.high / both.low < alone.high / alone.low


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    """Of 80 cases: 0.9, give or take twice what chance makes (forecast_coverage.py: of hundreds)."""
    answers = [answer(draw_case(seed)) for seed in range(80)]
    assert 0.83 <= np.mean([one.covered for one in answers]) <= 0.97
    assert np.median([abs(one.error) for one in answers]) < 0.02


@pytest.mark.parametrize(("batches", "count"), [(1, 24), (30, 24), (56, 13), (10_000, 1)])
def test_large_windows_are_played_less_often(batches: int, count: int) -> None:
    assert windows_to_play(((1.0,) * batches,)) == count
