"""The played pipeline: exact small cases, and every rule of the channels by its effect."""

from __future__ import annotations

from dataclasses import replace

import pytest

from profiler.forecast.closed_form import estimate
from profiler.forecast.model import Line, PipelineModel
from profiler.forecast.setting import Setting
from profiler.forecast.simulation import Played, simulate

two_stages = Setting(target_places=(0,), drafter_places=(1,))
four_batches = ((100.0,) * 4,)


def model(forward_s: float = 1.0, backward_s: float = 0.5, **more: object) -> PipelineModel:
    changes: dict[str, object] = {"windows": four_batches, "token_bytes": 1.0, **more}
    return replace(
        PipelineModel(pack=Line(0.001), forward=Line(forward_s), backward=Line(backward_s)),
        **changes,  # type: ignore[arg-type]
    )


def play(costs: PipelineModel, setting: Setting = two_stages) -> Played:
    return simulate(costs, setting, costs.windows, seed=None)


def test_the_slower_stage_sets_the_pace() -> None:
    assert play(model(1.0, 0.5)).tokens_per_s == pytest.approx(100.0)
    assert play(model(0.5, 1.0)).tokens_per_s == pytest.approx(100.0)


def test_shares_of_time_say_who_works_and_who_waits() -> None:
    shares = play(model(1.0, 0.25)).shares
    assert shares["target"]["work"] == pytest.approx(1.0, abs=0.01)
    assert shares["drafter"]["work"] == pytest.approx(0.25, abs=0.01)
    assert shares["drafter"]["get q_hs"] == pytest.approx(0.75, abs=0.01)
    for stage in ("target", "drafter"):
        assert sum(shares[stage].values()) == pytest.approx(1.0, abs=0.01)


def test_a_drafter_that_limits_pays_for_the_step_of_each_window() -> None:
    assert play(model(0.1, 1.0, step_s=0.5)).tokens_per_s == pytest.approx(400 / 4.5)


def test_targets_share_the_batches() -> None:
    three = Setting(target_places=(0, 1, 2), drafter_places=(3,))
    assert play(model(1.2, 0.1), three).tokens_per_s == pytest.approx(250.0, rel=0.02)
    slow = model(1.0, 0.1, target_factors=(1.0, 1.0, 2.0), windows=((100.0,) * 40,))
    assert play(slow, three).tokens_per_s == pytest.approx(250.0, rel=0.03)


def test_pageable_copies_add_to_both_stages_and_peer_copies_to_none() -> None:
    links = {"pageable down": Line(0.5), "pageable up": Line(0.25), "peer": Line(0.5)}
    host = replace(two_stages, path="pageable", shared_queue=True)
    assert play(model(1.0, 0.5, links=links), host).tokens_per_s == pytest.approx(100 / 1.5)
    assert play(model(0.5, 1.0, links=links), host).tokens_per_s == pytest.approx(100 / 1.25)
    assert play(model(1.0, 0.5, links=links)).tokens_per_s == pytest.approx(100.0)


def test_a_target_whose_copies_are_slow_is_a_slow_target() -> None:
    links = {"pageable down": Line(0.5), "pageable up": Line(0.0)}
    host = Setting(target_places=(0, 1), drafter_places=(2,), path="pageable", shared_queue=True)
    many = ((100.0,) * 40,)
    slow = model(0.5, 0.01, links=links, copy_factors={"pinned down": (3.0, 1.0)}, windows=many)
    assert slow.copy_factor("pageable down", 0) == 3.0
    assert slow.copy_factor("peer", 0) == 1.0
    assert play(slow, host).tokens_per_s == pytest.approx(150.0, rel=0.03)
    assert estimate(slow, host, slow.windows).tokens_per_s == pytest.approx(150.0, rel=0.03)


def test_moves_between_drafters_have_a_speed_of_their_own_and_come_as_often_as_seen() -> None:
    shared = Setting(target_places=(0,), drafter_places=(1, 2), shared_queue=True, dispatch="round_robin")
    links = {"peer": Line(0.0), "move": Line(1.0)}
    for share, rate in ((0.0, 200.0), (0.5, 100 / 0.75), (1.0, 100.0)):
        costs = model(0.1, 1.0, links=links, away_share=share, windows=((100.0,) * 40,))
        assert play(costs, shared).tokens_per_s == pytest.approx(rate, rel=0.05)
        assert estimate(costs, shared, costs.windows).tokens_per_s == pytest.approx(rate, rel=0.05)
    assert model(links={"peer": Line(0.7)}).hop_s("move", 1.0) == 0.7


def test_work_beside_the_forward_grows_with_tokens_as_far_as_it_does() -> None:
    costs = model(1.0, 0.1, target_extra=Line(0.1, 0.009))
    assert play(costs).tokens_per_s == pytest.approx(100 / 2.0)
    halves = replace(costs, forward=Line(0.0, 0.01), windows=((50.0,) * 8,))
    assert play(halves).tokens_per_s == pytest.approx(50 / (0.5 + 0.1 + 0.45))


def test_a_slow_link_limits_a_path_that_overlaps() -> None:
    assert play(model(0.5, 0.5, links={"peer": Line(2.0)})).tokens_per_s == pytest.approx(50.0)
    pinned = {"pinned down": Line(2.0), "pinned up": Line(1.0)}
    assert play(
        model(0.5, 0.5, links=pinned), replace(two_stages, path="pinned")
    ).tokens_per_s == pytest.approx(50.0, rel=0.01)


def test_lockstep_adds_what_overlapping_hides() -> None:
    locked = replace(two_stages, lockstep=True)
    assert play(model(1.0, 0.5), locked).tokens_per_s == pytest.approx(100 / 1.5)
    wide = Setting(target_places=(0, 1), drafter_places=(2,), lockstep=True)
    assert play(model(1.0, 0.5), wide).tokens_per_s == pytest.approx(200 / 2.0)


def test_a_shared_device_works_for_one_role_at_a_time() -> None:
    alone = Setting(target_places=(0,), drafter_places=(0,), dispatch="local")
    assert play(model(1.0, 0.5), alone).tokens_per_s == pytest.approx(100 / 1.5, rel=0.02)


def test_a_shared_queue_moves_what_lives_elsewhere() -> None:
    shared = Setting(target_places=(0,), drafter_places=(1, 2), shared_queue=True, dispatch="round_robin")
    costs = model(0.2, 0.4, links={"peer": Line(0.01)})
    played = simulate(costs, shared, costs.windows, seed=None)
    home = simulate(costs, replace(shared, shared_queue=False), costs.windows, seed=None)
    assert "copy" not in home.shares["drafter"]
    assert played.tokens_per_s <= home.tokens_per_s


def test_a_window_waits_for_the_step_of_the_one_before() -> None:
    # Two drafters, three batches a window: two rounds, however fast the targets.
    pair = Setting(target_places=(0,), drafter_places=(1, 2))
    costs = model(0.01, 1.0, windows=((100.0,) * 3,))
    assert simulate(costs, pair, costs.windows, seed=None).tokens_per_s == pytest.approx(150.0)


def test_a_short_queue_holds_targets_up_during_a_long_step() -> None:
    costs = model(1.0, 0.1, step_s=5.0, windows=((100.0,) * 8,))
    shallow = simulate(costs, replace(two_stages, depth=1), costs.windows, seed=None)
    deep = simulate(costs, replace(two_stages, depth=8), costs.windows, seed=None)
    assert deep.tokens_per_s == pytest.approx(100.0, rel=0.01)
    assert shallow.tokens_per_s < 0.85 * deep.tokens_per_s


def test_work_on_too_few_cores_slows_everybody() -> None:
    assert play(model(1.0, 1.0, cores=1.0)).tokens_per_s == pytest.approx(50.0, rel=0.01)
    assert play(model(1.0, 1.0, cores=4.0)).tokens_per_s == pytest.approx(100.0, rel=0.01)
    crowded = play(model(1.0, 1.0, cores=4.0, crowding=0.25))
    assert crowded.tokens_per_s == pytest.approx(80.0, rel=0.02)


def test_luck_is_repeatable_and_keeps_the_mean() -> None:
    noisy = model(1.0, 0.2, noise={"target": 0.1, "drafter": 0.1})
    first, again = (simulate(noisy, two_stages, noisy.windows, seed=3) for _ in range(2))
    assert first == again
    assert first.tokens_per_s == pytest.approx(100.0, rel=0.04)
    assert first != simulate(noisy, two_stages, noisy.windows, seed=4)
