"""What is held out follows from texts alone: never from order, numbers of rows or who prepared them."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash.contract.config import TrainConfig, load_config
from dflash.contract.errors import DataError
from dflash.data.documents import Books, Document, Documents
from dflash.data.slices import automatic_from, hold_out, smallest_keys, text_keys


def documents_of(texts: list[list[int]]) -> Documents:
    items = tuple(
        Document(ids=np.array(ids, np.int32), loss_mask=np.ones(len(ids), np.bool_), file="made", line=line)
        for line, ids in enumerate(texts, start=1)
    )
    books = Books(
        rows_read=len(items),
        rows_usable=len(items),
        refused=(),
        warnings=(),
        supervised_share=1.0,
        distinct_texts=len({tuple(ids) for ids in texts}),
    )
    return Documents(items, books)


def texts(count: int, seed: int = 0) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(4000) for _ in range(rng.randint(2, 9))] for _ in range(count)]


def configure(share: float, seed: int = 0) -> TrainConfig:
    return load_config(None, [f"data.held_out={share}", f"data.seed={seed}"])


def held(found: tuple[Documents, Documents | None]) -> set[tuple[int, ...]]:
    return set() if found[1] is None else {tuple(item.ids.tolist()) for item in found[1].items}


def test_the_keys_of_texts_are_these_for_ever() -> None:
    keys = text_keys(np.array([0, 1, 2**64 - 1], np.uint64), seed=0)
    assert keys.tolist() == [16294208416658607535, 13830413928045401970, 11923130667873509210]
    assert text_keys(np.array([1], np.uint64), seed=7).tolist() != keys[1:2].tolist()


@given(st.integers(0, 10**6), st.integers(0, 5), st.sampled_from([0.1, 0.3, 0.5]))
def test_order_and_other_rows_do_not_decide_and_equal_texts_stay_together(
    shuffling: int, seed: int, share: float
) -> None:
    rows = texts(60, seed)
    rows += rows[:20]  # duplicates
    config = configure(share, seed)
    train, apart = hold_out(documents_of(rows), config)
    chosen = held((train, apart))
    both = chosen & {tuple(item.ids.tolist()) for item in train.items}
    assert not both
    assert len(train.items) + (0 if apart is None else len(apart.items)) == len(rows)
    random.Random(shuffling).shuffle(rows)
    assert held(hold_out(documents_of(rows), config)) == chosen
    assert held(hold_out(documents_of(rows + texts(30, seed + 100)), config)) >= chosen


def test_the_share_is_about_what_was_asked_for() -> None:
    documents = documents_of(texts(4000))
    train, apart = hold_out(documents, configure(0.1))
    assert apart is not None
    assert 300 < len(apart.items) < 500
    assert train.tokens + apart.tokens == documents.tokens
    assert [item.line for item in train.items] == sorted(item.line for item in train.items)
    assert train.lengths.tolist() == [len(item.ids) for item in train.items]
    assert train.identity != documents.identity != apart.identity
    other_seed = hold_out(documents, configure(0.1, seed=1))
    assert held(other_seed) != held((train, apart))


@pytest.mark.parametrize(("count", "some"), [(automatic_from - 1, False), (automatic_from, True)])
def test_unasked_a_hundredth_of_many_documents_is_held_out(count: int, some: bool) -> None:
    _, apart = hold_out(documents_of(texts(count)), configure(-1))
    assert (apart is not None) == some
    assert apart is None or len(apart.items) < 0.03 * count


def test_none_is_none() -> None:
    documents = documents_of(texts(5))
    assert hold_out(documents, configure(0)) == (documents, None)


def test_nothing_left_to_train_on_is_refused() -> None:
    rows = texts(300)
    (text, *_) = held(hold_out(documents_of(rows), configure(0.1)))
    with pytest.raises(DataError, match="every document is held out"):
        hold_out(documents_of([list(text)] * 5), configure(0.1))


def test_a_sample_has_each_text_once() -> None:
    rows = texts(40) * 3
    order = smallest_keys(documents_of(rows), seed=0)
    assert len(order) == 40 == len({tuple(rows[n]) for n in order})
    again = smallest_keys(documents_of(rows[::-1]), seed=0)
    assert [rows[n] for n in order] == [rows[::-1][n] for n in again]
