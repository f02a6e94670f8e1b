"""Training that learns nothing is noticed, once for each kind of trouble."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from dflash.batch import WindowInfo
from dflash.loss_health import LossHealth, flat_windows
from dflash.window_figures import WindowFigures


def check(health: LossHealth, step: int, *, supervised: int = 9, **changes: Any) -> list[str]:
    window = WindowInfo(
        **{f.name: 1 for f in fields(WindowInfo)} | {"step": step, "supervised_tokens": supervised}
    )
    figures = {"loss": 2.0 - step / 1000, "grad_norm": 1.0, "lr": 1e-4, "states": 100} | changes
    figures |= {"slot_correct": (0, 1), "slot_counted": (0, 10)}
    return health.check(window, WindowFigures(**figures))


def test_a_loss_that_moves_is_healthy() -> None:
    health = LossHealth()
    assert [check(health, step) for step in range(3 * flat_windows)] == [[]] * (3 * flat_windows)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"supervised": 0, "loss": 0.0}, "no token of the window is supervised"),
        ({"loss": 0.0}, "the loss is exactly 0"),
        ({"grad_norm": 0.0}, "the gradient is exactly 0"),
        ({"states_absent": 2}, "no states for 2 of 100 tokens"),
    ],
)
def test_trouble_is_told_once(changes: dict[str, Any], words: str) -> None:
    health = LossHealth()
    assert check(health, 1) == []
    (told,) = check(health, 2, **changes)
    assert told.startswith("step 2: ")
    assert words in told
    assert check(health, 3, **changes) == []


def test_a_loss_that_stands_still_is_told_after_many_steps() -> None:
    health = LossHealth()
    told = [check(health, step, loss=7.5) for step in range(2 * flat_windows)]
    assert [len(t) for t in told].index(1) == flat_windows - 1
    assert sum(map(len, told)) == 1


def test_standing_still_without_a_learning_rate_is_no_trouble() -> None:
    health = LossHealth()
    assert all(check(health, step, loss=7.5, lr=0.0) == [] for step in range(2 * flat_windows))


def test_a_few_missing_states_are_counted_and_not_told() -> None:
    assert check(LossHealth(), 1, states_absent=1) == []
