"""Totals and the console line."""

from __future__ import annotations

import pytest

from dflash import counters
from dflash.batch import WindowInfo
from dflash.counters import Counters
from dflash.window_end import WindowFigures


def window(step: int, tokens: int) -> WindowInfo:
    return WindowInfo(
        step=step, epoch=0, batches=2, documents=3, tokens=tokens,
        supervised_tokens=tokens // 2, processed_tokens=tokens, denominator=1.0,
    )  # fmt: skip


def test_the_line_people_know(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([100.0, 100.5, 101.0])
    monkeypatch.setattr(counters.time, "monotonic", lambda: next(clock))
    counted = Counters(total_steps=60, first_step=10)
    depths = [("q_pre", 3, 4), ("q_hs", 1, 2)]
    assert counted.line(depths) == "q_pre=3/4 q_hs=1/2 step 10/60 n/a Ktok/s"
    for step in range(3):
        counted.window_done(window(10 + step, 2050), WindowFigures(7.93, 0.021, 1.0, 1e-4))
    assert counted.line(depths) == "q_pre=3/4 q_hs=1/2 step 13/60 loss 7.930 accuracy 0.021 4.1 Ktok/s"
    assert (counted.tokens, counted.documents, counted.batches) == (6150, 9, 6)
    assert counted.losses == [7.93] * 3
