"""The closed form: right values in small cases, and agreement with the simulation over many pipelines."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest

from profiler.forecast.closed_form import estimate, stage_slowdowns
from profiler.forecast.model import Line, PipelineModel, hops
from profiler.forecast.setting import Setting
from profiler.forecast.simulation import simulate

two_stages = Setting(target_places=(0,), drafter_places=(1,))
plain = PipelineModel(
    pack=Line(0.001), forward=Line(1.0), backward=Line(0.5), windows=((100.0,) * 4,), token_bytes=1.0
)


def test_the_limit_is_named_and_priced() -> None:
    bounds = estimate(plain, two_stages, plain.windows)
    assert (bounds.limit, bounds.tokens_per_s) == ("targets", pytest.approx(100.0))
    slow = replace(plain, backward=Line(2.0), step_s=1.0)
    bounds = estimate(slow, two_stages, slow.windows)
    assert (bounds.limit, bounds.tokens_per_s) == ("drafters", pytest.approx(400 / 9))
    packing = replace(plain, pack=Line(3.0))
    assert estimate(packing, two_stages, packing.windows).limit == "prefetch"
    link = replace(plain, links={"peer": Line(4.0)})
    assert estimate(link, two_stages, link.windows).limit == "links"


shared = replace(two_stages, drafter_places=(0,))


def both_ways(model: PipelineModel, setting: Setting) -> tuple[float, float]:
    """Seconds of a batch by either."""
    played = simulate(model, setting, model.windows, seed=None)
    return 100.0 / estimate(model, setting, model.windows).tokens_per_s, 100.0 / played.tokens_per_s


def test_roles_on_one_gpu_do_more_only_while_both_are_at_work() -> None:
    even = replace(plain, backward=Line(1.0), sharing_gain=1.25)
    for model, setting, batch_s in (
        (replace(even, sharing_gain=None), shared, 2.0),  # in turns
        (even, shared, 2 / 1.25),
        (replace(even, backward=Line(0.5)), shared, 0.5 * 2 / 1.25 + 0.5),  # the rest of a forward alone
        (even, replace(shared, lockstep=True), 2.0),
        (even, two_stages, 1.0),
    ):
        assert both_ways(model, setting) == pytest.approx((batch_s, batch_s), rel=0.02)


def test_pageable_copies_of_one_gpu_exclude_each_other_and_hold_up_its_roles() -> None:
    """A drafter's copy begins when the target's ends, and keeps the driver for half of its time."""
    links = {"pageable down": Line(1.0), "pageable up": Line(0.4)}
    host = replace(shared, path="pageable", shared_queue=True)
    free = replace(plain, links=links, sharing_gain=2.0)  # as if either role had the GPU for itself
    assert both_ways(free, host) == pytest.approx((0.2 + 1.0 + 1.0,) * 2, rel=0.01)
    slower = replace(free, sharing_gain=1.0)
    assert both_ways(slower, host) == pytest.approx((0.2 + 1.5 + 1.0,) * 2, rel=0.1)
    pairs = replace(host, target_places=(0, 0, 0), drafter_places=(0, 0, 0))
    quick = replace(free, forward=Line(0.1), backward=Line(0.05))
    assert both_ways(quick, pairs) == pytest.approx((1.4, 1.4), rel=0.02)
    on_two = replace(pairs, target_places=(0, 1), drafter_places=(0, 1))
    assert both_ways(quick, on_two) == pytest.approx((0.7, 0.7), rel=0.05)
    assert both_ways(replace(quick, sharing_gain=None), pairs)[1] < 0.8  # logical devices have no driver


def test_targets_on_one_device_take_turns_in_lockstep() -> None:
    two = replace(shared, target_places=(0, 0), lockstep=True)
    for gain in (None, 1.25):
        assert both_ways(replace(plain, sharing_gain=gain), two) == pytest.approx((1.5, 1.5), rel=0.02)


def test_slowdowns_need_cores() -> None:
    assert stage_slowdowns(plain, two_stages, plain.windows) == (1.0, 1.0, 1.0)
    crowded = replace(plain, cores=1.0)
    assert min(stage_slowdowns(crowded, two_stages, crowded.windows)) > 1.0


def draw(seed: int) -> tuple[PipelineModel, Setting]:
    """Any pipeline: apart, colocated or in lockstep, on every path, on devices or on cores."""
    random = np.random.default_rng(seed)
    targets, drafters = int(random.integers(1, 5)), int(random.integers(1, 4))
    kind = random.choice(["apart", "apart", "apart", "colocated", "lockstep"])
    if kind == "colocated":
        places = (tuple(range(targets)), tuple(range(targets)))
    else:
        places = (tuple(range(targets)), tuple(range(targets, targets + drafters)))
    setting = Setting(
        target_places=places[0],
        drafter_places=places[1],
        shared_queue=kind != "colocated" and bool(random.random() < 0.3),
        path="peer" if kind == "colocated" else str(random.choice(list(hops))),
        dispatch="local" if kind == "colocated" else str(random.choice(["round_robin", "least_depth"])),
        depth=int(random.integers(1, 6)),
        prefetch_depth=int(random.integers(2, 10)),
        lockstep=bool(kind == "lockstep"),
    )
    count = int(random.integers(max(setting.drafters, 2), 12))
    cores = None if random.random() < 0.6 else float(random.integers(2, 9))
    links = {hop: Line(1e-4, random.uniform(0.01, 0.4) / 1e3) for way in hops.values() for hop in way}
    model = PipelineModel(
        pack=Line(0.0, random.uniform(1e-6, 5e-5)),
        forward=Line(random.uniform(0, 0.3), random.uniform(2e-4, 1e-3)),
        backward=Line(random.uniform(0, 0.3), random.uniform(1e-4, 8e-4)),
        target_extra=Line(random.uniform(0, 0.03)),
        drafter_extra=Line(random.uniform(0, 0.03)),
        step_s=random.uniform(0, 0.4),
        merge_s=random.uniform(0, 0.1),
        noise={"target": random.uniform(0, 0.1), "drafter": random.uniform(0, 0.1)},
        links=links,
        token_bytes=1.0,
        cores=cores,
        crowding=0.0 if cores is None else random.uniform(0, 0.15),
        windows=tuple((1000.0,) * int(count + random.integers(0, 2)) for _ in range(8)),
    )
    return model, setting


def test_closed_form_and_simulation_agree() -> None:
    errors = []
    for seed in range(120):
        model, setting = draw(seed)
        played = simulate(model, setting, model.windows, count=24).tokens_per_s
        errors.append(abs(estimate(model, setting, model.windows).tokens_per_s / played - 1.0))
    assert np.median(errors) < 0.02
    assert np.quantile(errors, 0.9) < 0.1
    assert max(errors) < 0.3


def test_thousands_of_settings_are_ranked_as_the_simulation_ranks_the_far_apart() -> None:
    model, _ = draw(5)
    model = replace(model, cores=None)
    settings = [
        Setting(target_places=tuple(range(t)), drafter_places=tuple(range(t, t + d)), path=path, depth=depth)
        for t in range(1, 6)
        for d in range(1, 3)
        for path in hops
        for depth in (1, 3)
    ]
    quick = [estimate(model, setting, model.windows).tokens_per_s for setting in settings]
    best, worst = settings[int(np.argmax(quick))], settings[int(np.argmin(quick))]
    assert (
        simulate(model, best, model.windows, count=16).tokens_per_s
        > 1.5 * simulate(model, worst, model.windows, count=16).tokens_per_s
    )
    begin = time.process_time()
    for setting in settings * 20:
        estimate(model, setting, model.windows)
    assert time.process_time() - begin < 10.0  # 1,200 of them; it takes a tenth of a second
