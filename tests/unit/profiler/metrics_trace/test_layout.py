"""Batches are laid out so that shares, seconds and counts come out as the file says them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiler.metrics_trace.fields import line_fields
from profiler.metrics_trace.layout import BatchTime, Layout, with_rates


def rows_of(count: int = 30, length_s: float = 2.0, segment: Any = 0, **values: float) -> pd.DataFrame:
    """Equal intervals; dots in names as two underscores."""
    frame = pd.DataFrame({f.path: [np.nan] * count for f in line_fields})
    frame = frame.assign(start_s=np.arange(count) * length_s, length_s=length_s, segment=segment)
    return frame.assign(**{name.replace("__", "."): value for name, value in values.items()})


def batches_of(stage: str, rows: pd.DataFrame, targets: int = 1, drafters: int = 1) -> list[BatchTime]:
    return list(Layout(stage, with_rates(rows, targets, drafters)).batches())


def seconds_in(batches: list[BatchTime], name: str) -> float:
    return sum(p.end_s - p.begin_s for b in batches for p in b.pieces if p.part.name == name)


def test_a_batch_spans_intervals_and_keeps_its_seconds(tmp_path: Path) -> None:
    rows = rows_of(tok_s=1000.0, budget=10_000.0, target__fwd_s=8.0)  # a batch every 10 s
    batches = batches_of("target", rows)
    assert [(b.begin_s, b.end_s) for b in batches] == [pytest.approx((10 * i, 10 * i + 10)) for i in range(6)]
    forwards = [p for b in batches for p in b.pieces]
    assert all(p.end_s - p.begin_s == pytest.approx(8.0) for p in forwards)
    assert [p.tokens for p in forwards] == [10_000] * 6


def test_waits_are_kept_and_work_is_cut_to_what_they_leave() -> None:
    rows = rows_of(tok_s=1000.0, budget=10_000.0, drafter__fwdbwd_s=8.0, q__hs__get_wait_frac=0.5)
    layout = Layout("drafter", with_rates(rows, 1, 1))
    batches = list(layout.batches())
    assert seconds_in(batches, "get") == pytest.approx(30.0)
    assert seconds_in(batches, "backward") == pytest.approx(30.0)
    assert layout.overfull == pytest.approx(1.3)


def test_what_nobody_tells_stays_uncovered() -> None:
    rows = rows_of(tok_s=1000.0, budget=10_000.0, target__fwd_s=2.0)
    layout = Layout("target", with_rates(rows, 1, 1))
    assert seconds_in(list(layout.batches()), "forward") == pytest.approx(12.0)
    assert layout.overfull == 1.0


def test_own_copies_are_what_does_not_overlap() -> None:
    facts = {"tok_s": 1000.0, "budget": 10_000.0, "target__d2h_s": 2.0}
    for overlap, own_s in ((0.0, 12.0), (0.75, 3.0), (1.0, 0.0), (np.nan, 0.0)):
        batches = batches_of("target", rows_of(**facts, target__d2h_overlap=overlap))
        assert seconds_in(batches, "copy") == pytest.approx(own_s)


def test_moves_belong_to_batches_from_elsewhere() -> None:
    facts = {"tok_s": 1000.0, "budget": 10_000.0, "drafter__xdev_copy_s": 4.0}
    batches = batches_of("drafter", rows_of(**facts, drafter__wrong_home_frac=0.5))
    assert [b.away for b in batches] == [False, True] * 3
    assert [seconds_in([b], "copy") for b in batches] == pytest.approx([0.0, 4.0] * 3)
    unknown = batches_of("drafter", rows_of(**facts))
    assert {b.away for b in unknown} == {None}
    assert seconds_in(unknown, "copy") == pytest.approx(24.0)


def test_a_move_that_outlasts_the_mean_batch_is_kept_whole() -> None:
    facts = {"tok_s": 1000.0, "budget": 10_000.0, "drafter__fwdbwd_s": 3.0, "drafter__xdev_copy_s": 12.0}
    batches = batches_of("drafter", rows_of(**facts, drafter__wrong_home_frac=0.5))
    assert [b.end_s - b.begin_s for b in batches] == pytest.approx([4.0, 16.0] * 3)
    assert [seconds_in([b], "copy") for b in batches] == pytest.approx([0.0, 12.0] * 3)
    assert seconds_in(batches, "backward") == pytest.approx(18.0)


def test_a_growing_queue_tells_the_pace_of_targets_that_count_nothing() -> None:
    rows = rows_of(60, tok_s=5000.0, budget=10_000.0, target__fwd_s=1.0)  # half a batch a second is used
    rows = rows.assign(**{"q.hs.depth": np.minimum(np.arange(60) // 2, 15).astype(float)})
    paces = with_rates(rows, 1, 1)["target_rate"]
    assert paces[:20].mean() == pytest.approx(0.75, abs=0.05)  # one more waits every 4 s
    assert paces[45:].mean() == pytest.approx(0.5, abs=0.01)
    assert (paces * 2).sum() == pytest.approx(0.5 * 120 + 15, abs=1)  # books balance


def test_without_a_count_of_batches_only_waits_are_told() -> None:
    batches = batches_of("target", rows_of(tok_s=1000.0, target__fwd_s=8.0, q__pre__get_wait_frac=0.25))
    assert {b.number for b in batches} == {None}
    assert seconds_in(batches, "get") == pytest.approx(15.0)
    assert seconds_in(batches, "forward") == 0.0


def test_counters_serve_where_the_budget_is_unknown() -> None:
    rows = rows_of(target__fwd_s=8.0).assign(**{"q.hs.consumed": np.arange(30) * 0.2})
    batches = batches_of("target", rows)
    assert len(batches) == 6
    assert seconds_in(batches, "forward") == pytest.approx(48.0)


def test_a_reading_that_failed_is_no_standstill() -> None:
    rows = rows_of(budget=10_000.0, target__fwd_s=8.0).assign(tok_s=[1000.0, np.nan, 1000.0] * 10)
    batches = batches_of("target", rows)
    assert seconds_in(batches, "forward") == pytest.approx(48.0)  # 60 s, a batch in 10 s


def test_a_counter_that_time_has_no_room_for_is_not_believed() -> None:
    made = np.arange(30) * 0.4  # 0.2 batches a second of 8 s each, on one thread
    facts = {"tok_s": 1000.0, "budget": 10_000.0, "target__fwd_s": 8.0}
    assert len(batches_of("target", rows_of(**facts).assign(**{"q.hs.produced": made}))) == 6
    assert len(batches_of("target", rows_of(**facts).assign(**{"q.hs.produced": made}), targets=2)) == 6


def test_nothing_is_laid_into_a_gap() -> None:
    rows = rows_of(10, segment=[0] * 5 + [1] * 5, tok_s=1000.0, budget=10_000.0, target__fwd_s=8.0)
    rows.loc[5:, "start_s"] += 100.0
    batches = batches_of("target", rows)
    assert [(b.begin_s, b.end_s) for b in batches] == [pytest.approx(x) for x in ((0, 10), (110, 120))]


share = st.floats(0, 1)
seconds = st.one_of(st.just(np.nan), st.floats(0, 50))


@settings(max_examples=60)
@given(
    rates=st.lists(st.one_of(st.just(np.nan), st.floats(0, 1e5)), min_size=2, max_size=12),
    waits=st.tuples(share, share),
    work=st.tuples(seconds, seconds, seconds),
)
def test_pieces_never_overlap_and_never_leave_their_batch(
    rates: list[float], waits: tuple[float, float], work: tuple[float, float, float]
) -> None:
    facts = dict(zip(("target__fwd_s", "target__pack_s", "target__d2h_s"), work, strict=True))
    rows = rows_of(
        len(rates), budget=1000.0, target__d2h_overlap=0.5, **facts,
        q__pre__get_wait_frac=waits[0], q__hs__put_wait_frac=waits[1],
    ).assign(tok_s=rates)  # fmt: skip
    at_s = 0.0
    for batch in batches_of("target", rows):
        assert batch.begin_s >= at_s - 1e-6
        at_s = batch.begin_s
        for piece in batch.pieces:
            assert at_s - 1e-6 <= piece.begin_s <= piece.end_s <= batch.end_s + 1e-6
            at_s = piece.end_s
    assert at_s <= 2.0 * len(rates) + 1e-6
