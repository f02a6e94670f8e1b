"""Documents that need as much memory as any mix can."""

from __future__ import annotations

import numpy as np
import pytest

from dflash.contract.config import TrainConfig, load_config
from dflash.data.documents import Books, Document, Documents
from dflash.window import batches
from dflash.worst_case import make_worst


def documents(*sizes: tuple[int, int]) -> Documents:
    """Of these (tokens, supervised tokens at the end)."""
    items = []
    for length, supervised in sizes:
        mask = np.zeros(length, np.bool_)
        mask[length - supervised :] = True
        items.append(Document(ids=np.arange(length, dtype=np.int32), loss_mask=mask, file="f", line=1))
    books = Books(
        rows_read=len(items), rows_usable=len(items), refused=(), warnings=(), supervised_share=1.0,
        distinct_texts=len(items),
    )  # fmt: skip
    return Documents(tuple(items), books)


def configure(*changes: str) -> TrainConfig:
    return load_config(
        None, ("data.max_length=64", "pipeline.token_budget=256", "window.tokens=512",
               "drafter.block_size=4", "objective.anchors_per_document=8", *changes)
    )  # fmt: skip


def test_batches_are_full_of_the_longest_documents_supervised_from_end_to_end() -> None:
    config, made = make_worst(configure("objective.anchors_per_document=63"), documents((20, 4), (64, 4)))
    assert set(made.lengths) == {64}
    for batch, _ in zip(batches(made, config, layout="flat"), range(8), strict=False):
        assert (batch.tokens, len(batch.anchors)) == (256, 4 * 63)


@pytest.mark.parametrize("budget", [100, 192, 250])
def test_what_the_longest_leave_of_the_budget_is_filled_as_well(budget: int) -> None:
    config, made = make_worst(
        configure(f"pipeline.token_budget={budget}", "objective.anchors_per_document=63"), documents((64, 9))
    )
    assert (
        max(b.tokens for b, _ in zip(batches(made, config, layout="flat"), range(8), strict=False)) == budget
    )


def test_short_documents_full_of_anchors_outweigh_long_ones() -> None:
    short = documents(*[(10, 10)] * 60)
    config, made = make_worst(configure(), short)
    assert set(made.lengths) == {10}
    first = next(batches(made, config, layout="flat"))
    real = batches(short, configure(), layout="flat")
    assert len(first.anchors) >= max(len(batch.anchors) for batch in real)


def test_every_drafter_gets_a_batch_of_a_window() -> None:
    config, made = make_worst(configure("split=1-3", "window.tokens=1024"), documents((64, 64)))
    for batch, _ in zip(batches(made, config, layout="flat"), range(6), strict=False):
        assert batch.window.batches >= 3
