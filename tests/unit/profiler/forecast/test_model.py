"""The windows of another budget: batches of whole documents, as few as the budget allows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from profiler.forecast.model import Line, PipelineModel, lay_windows
from profiler.forecast.setting import Setting

now = Setting(target_places=(0,), drafter_places=(1,), token_budget=1000, window_tokens=3000)
seen = PipelineModel(pack=Line(), forward=Line(), backward=Line(), windows=((1000.0,) * 3,) * 5)


def test_what_was_seen_stays_as_it_was() -> None:
    assert lay_windows(seen, now, now) is seen.windows
    known = replace(seen, documents=(300.0, 700.0))
    assert lay_windows(known, replace(now, depth=9), now) is seen.windows


def test_unknown_documents_fill_every_budget() -> None:
    assert lay_windows(seen, replace(now, token_budget=750), now) == ((750.0,) * 4,) * 5
    assert lay_windows(seen, replace(now, window_tokens=6000), now) == ((1000.0,) * 6,) * 5


@pytest.mark.parametrize(("budget", "count"), [(1100, 5), (1200, 3), (3000, 1), (600, 5), (500, 5)])
def test_whole_documents_leave_room_in_small_batches(budget: int, count: int) -> None:
    # Five of 600 tokens a window: one, two or five fit into a batch. One longer than the budget goes alone.
    known = replace(seen, documents=(600.0,) * 3)
    windows = lay_windows(known, replace(now, token_budget=budget), now)
    assert [len(window) for window in windows] == [count] * 5
    for window in windows:
        assert sum(window) == pytest.approx(3000)
        assert max(window) <= max(budget, 600)


def test_mixed_documents_are_spread_evenly() -> None:
    known = replace(seen, documents=tuple(float(n) for n in range(50, 150, 7)))
    (window, *_) = lay_windows(known, replace(now, token_budget=800), now)
    assert len(window) == 4
    assert max(window) / min(window) < 1.1
