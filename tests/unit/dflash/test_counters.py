"""Totals and the console line."""

from __future__ import annotations

import pytest

from dflash import counters
from dflash.batch import WindowInfo
from dflash.counters import Counters
from dflash.window_figures import WindowFigures


def window(step: int, tokens: int) -> WindowInfo:
    return WindowInfo(
        step=step, epoch=0, batches=2, documents=3, tokens=tokens,
        supervised_tokens=tokens // 2, processed_tokens=tokens, denominator=1.0,
    )  # fmt: skip


def figures(loss: float, correct: tuple[int, ...], counted: tuple[int, ...]) -> WindowFigures:
    return WindowFigures(
        loss=loss,
        slot_correct=correct,
        slot_counted=counted,
        grad_norm=1.0,
        lr=1e-4,
        states_absent=3,
        states=9,
    )


def test_the_line_people_know(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([100.0, 100.5, 101.0])
    monkeypatch.setattr(counters.time, "monotonic", lambda: next(clock))
    counted = Counters(total_steps=60, first_step=10)
    depths = [("q_pre", 3, 4), ("q_hs", 1, 2)]
    assert counted.line(depths) == "q_pre=3/4 q_hs=1/2 step 10/60 n/a Ktok/s"
    for step in range(3):
        counted.window_done(window(10 + step, 2050), figures(7.93, correct=(0, 20, 1), counted=(0, 500, 500)))
    assert counted.line(depths) == "q_pre=3/4 q_hs=1/2 step 13/60 loss 7.930 accuracy 0.021 4.1 Ktok/s"
    assert (counted.tokens, counted.documents, counted.batches) == (6150, 9, 6)
    assert counted.losses == [7.93] * 3
    assert counted.states_absent == 9


def test_accuracy_that_nothing_counted_for_is_not_zero() -> None:
    counted = Counters(total_steps=1)
    counted.window_done(window(0, 10), figures(1.0, correct=(0, 0), counted=(0, 0)))
    assert "loss 1.000 accuracy n/a" in counted.line([])
    assert (counted.learned() or {})["slot_accuracy"] == [None]


def test_what_was_learned_is_pooled_over_the_last_windows() -> None:
    counted = Counters(total_steps=100)
    assert counted.learned() is None
    for step in range(20):  # the first four are forgotten
        right = 100 if step < 4 else step
        counted.window_done(window(step, 10), figures(20.0 - step, (0, right, 1), (0, 100, 10)))
    learned = counted.learned()
    assert learned is not None
    pooled = sum(range(4, 20))
    assert learned["slot_accuracy"] == [pytest.approx(pooled / 1600), pytest.approx(0.1)]
    assert learned["accuracy"] == pytest.approx((pooled + 16) / (1600 + 160))
    assert (learned["first_loss"], learned["last_loss"], learned["recent_windows"]) == (20.0, 1.0, 16)
    assert learned["recent_loss"] == pytest.approx(sum(range(1, 17)) / 16)
