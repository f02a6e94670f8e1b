"""The physics of all configurations at once: the forecast's own arithmetic, and slopes that are right."""

import math
import random

import numpy as np
import pytest

from autotune.guided.physics import Layout, as_closed_form, costs_of, log_rates, slopes
from profiler.forecast.closed_form import estimate
from profiler.forecast.fitting import gpu_sharing_gain
from profiler.forecast.model import Line, PipelineModel
from profiler.forecast.setting import Setting

window = 98_304.0


def random_setting(draw: random.Random) -> Setting:
    targets, drafters = draw.randint(1, 6), draw.randint(1, 6)
    together, on_one = draw.random() < 0.25, draw.random() < 0.1
    if together:
        drafters = targets
    first = 0 if together else targets
    path = draw.choice(["pinned", "peer"] if together or on_one else ["pageable", "pinned", "peer"])
    return Setting(
        target_places=(0,) * targets if on_one else tuple(range(targets)),
        drafter_places=(0,) * drafters if on_one else tuple(first + i for i in range(drafters)),
        shared_queue=draw.random() < 0.5 and path != "pinned",
        path=path,
        dispatch="local" if together and path == "peer" else "least_depth",
        depth=draw.choice([1, 2, 8]),
        lockstep=draw.random() < 0.2,
        token_budget=draw.choice([4096, 8192, 16384]),
        window_tokens=int(window),
    )


def random_model(draw: random.Random) -> PipelineModel:
    cost = lambda low, high: math.exp(draw.uniform(math.log(low), math.log(high)))  # noqa: E731
    hops = ("pageable down", "pageable up", "pinned down", "pinned up", "peer", "move")
    return PipelineModel(
        pack=Line(0.0, cost(1e-8, 1e-5)),
        forward=Line(cost(0.01, 0.1), cost(1e-6, 1e-4)),
        backward=Line(cost(0.01, 0.1), cost(1e-6, 1e-4)),
        step_s=cost(0.01, 1.0),
        merge_s=cost(0.001, 0.1),
        noise={"target": 0.05, "drafter": 0.05},
        links={hop: Line(1e-4, 1 / cost(1e9, 1e11)) for hop in hops},
        token_bytes=51_200.0,
        sharing_gain=gpu_sharing_gain,
    )


def costs_at(model: PipelineModel, setting: Setting, tokens: float) -> list[float]:
    ways = {
        "pageable": ("pageable down", "pageable up"),
        "pinned": ("pinned down", "pinned up"),
        "peer": ("peer", "peer"),
    }
    down, up = (model.hop_s(hop, tokens) for hop in ways[setting.path])
    found = {
        "pack": model.pack.at(tokens),
        "forward": model.forward.at(tokens),
        "backward": model.backward.at(tokens),
        "step": model.window_s(setting.drafters),
        "down": down,
        "up": up,
        "move": model.hop_s("move", tokens),
    }
    return [found[name] for name in costs_of]


@pytest.mark.parametrize("seed", range(40))
def test_it_says_what_the_closed_form_says(seed: int) -> None:
    draw = random.Random(seed)
    settings = [random_setting(draw) for _ in range(10)]
    model = random_model(draw)
    layout = Layout.of(settings, window, 1.0)
    costs = np.array([costs_at(model, s, t) for s, t in zip(settings, layout.tokens, strict=True)]).T
    found = log_rates(layout, costs)
    for setting, n, tokens, rate in zip(settings, layout.batches, layout.tokens, found, strict=True):
        windows = ((float(tokens),) * int(n),) * max(setting.targets, 8)
        expected = math.log(estimate(model, setting, windows).tokens_per_s)
        assert rate == pytest.approx(expected, abs=1e-6), setting


def test_slopes_foretell_what_small_changes_do() -> None:
    draw = random.Random(7)
    settings = [random_setting(draw) for _ in range(50)]
    model = random_model(draw)
    layout = Layout.of(settings, window, 0.95)
    costs = np.array([costs_at(model, s, t) for s, t in zip(settings, layout.tokens, strict=True)]).T
    with_costs, with_form = slopes(layout, costs, as_closed_form)
    assert with_costs.shape == costs.shape
    assert with_form.shape[1] == len(settings)
    # Twice the time for everything is half the rate: all slopes together come to -1.
    assert with_costs.sum(axis=0) == pytest.approx(-np.ones(len(settings)), abs=0.02)
    assert (with_costs <= 1e-6).all()


def test_fuller_windows_have_fewer_batches() -> None:
    setting = random_setting(random.Random(1))
    full = Layout.of([setting], window, 1.0)
    poor = Layout.of([setting], window, 0.7)
    assert poor.batches[0] > full.batches[0]
    assert poor.batches[0] * poor.tokens[0] == pytest.approx(window)
