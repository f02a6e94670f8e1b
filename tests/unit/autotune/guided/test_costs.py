"""Costs of every configuration, from the stage figures of few."""

from __future__ import annotations

import math

import numpy as np
import pytest

from autotune.guided.costs import CostModel, figures_of, fit_costs
from autotune.guided.physics import Layout, costs_of
from autotune.telemetry import CopyFigures, StageFigures, Telemetry
from profiler.forecast.setting import Setting

budgets = (4096, 8192, 16384, 32768)
settings = [
    Setting(target_places=(0, 1), drafter_places=(2, 3), token_budget=budget, window_tokens=131072)
    for budget in budgets
]
layout = Layout.of(settings, 131072.0, 1.0)


def forward_s(tokens: float) -> float:
    return 0.08 + 3e-5 * tokens


def told(row: int) -> Telemetry:
    tokens = float(layout.tokens[row])
    return Telemetry(
        tokens_per_s=1e4,
        stages={"target": StageFigures(busy_s=forward_s(tokens), tokens=tokens, batches=100)},
        copies={"peer": CopyFigures(bytes=tokens * 51_200, seconds=1e-4 + tokens * 51_200 / 100e9)},
        step_s=0.4,
    )


def make_model(effects: dict[str, np.ndarray] | None = None) -> CostModel:
    return CostModel(layout, effects or {}, 51_200.0, 5e-5)


def costs_after(*rows: int) -> tuple[dict[str, np.ndarray], float]:
    model = make_model()
    fitted = fit_costs(model, [figures_of(row, told(row)) for row in rows])
    seconds, _ = model.costs(fitted.mean)
    return dict(zip(costs_of, seconds, strict=True)), float(np.trace(fitted.covariance))


def test_two_budgets_tell_of_the_others() -> None:
    costs, _ = costs_after(0, 2)
    expected = [forward_s(float(tokens)) for tokens in layout.tokens]
    assert costs["forward"] == pytest.approx(expected, rel=0.06)
    assert costs["down"] == pytest.approx([1e-4 + t * 51_200 / 100e9 for t in layout.tokens], rel=0.1)
    assert costs["step"] == pytest.approx([0.4] * 4, rel=0.05)


def test_figures_take_doubt_away() -> None:
    doubts = [costs_after(*rows)[1] for rows in ((), (0,), (0, 2))]
    assert doubts[0] > doubts[1] > doubts[2]


def test_slopes_are_those_of_the_law() -> None:
    model = make_model({"checkpointing=layers": np.array([0.0, 1.0, 0.0, 1.0])})
    w = np.array(model.weights.means)
    seconds, slopes = model.costs(w)
    for number in range(model.size):
        moved = w.copy()
        moved[number] += 1e-5
        change = (np.log(model.costs(moved)[0]) - np.log(seconds)) / 1e-5
        found = np.stack([each[:, number] for each in slopes])
        assert found == pytest.approx(change, abs=1e-3), model.weights.names[number]


def test_a_choice_without_physics_has_a_cost_of_its_own() -> None:
    model = make_model({"checkpointing=layers": np.array([0.0, 1.0, 0.0, 1.0])})
    figures = [
        figures_of(
            row,
            Telemetry(
                tokens_per_s=1e4,
                stages={"drafter": StageFigures(busy_s=s, tokens=float(layout.tokens[row]), batches=100)},
            ),
        )
        for row, s in ((0, 0.2), (1, 0.52))
    ]
    w = fit_costs(model, figures).mean
    assert w[model.weights.at("backward checkpointing=layers")] > 0.5 * math.log(1.1)
