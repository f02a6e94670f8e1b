import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash.packing import LayoutKind, lay_out, pack, positions_within

kinds: tuple[LayoutKind, ...] = ("flat", "packed", "padded")
some_lengths = st.lists(st.integers(1, 60), min_size=1, max_size=80).map(
    lambda sizes: np.array(sizes, np.int64)
)


@given(some_lengths, st.integers(60, 300), st.sampled_from(kinds))
def test_every_document_is_in_one_batch_and_none_is_over_budget(lengths, budget, kind):
    batches = pack(lengths, budget, kind)
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(lengths)))
    for batch in batches:
        assert np.all(np.diff(batch) > 0)
        cost = len(batch) * lengths[batch].max() if kind == "padded" else lengths[batch].sum()
        assert cost <= budget


@given(some_lengths, st.integers(60, 300), st.sampled_from(kinds))
def test_packing_is_deterministic(lengths, budget, kind):
    one, other = pack(lengths, budget, kind), pack(lengths, budget, kind)
    assert [batch.tolist() for batch in one] == [batch.tolist() for batch in other]


def lengths_of_people(count: int) -> np.ndarray:
    return np.clip(np.random.default_rng(0).lognormal(5, 1, count), 8, 3072).astype(np.int64)


def test_packed_batches_are_few_and_about_equally_full():
    lengths, budget = lengths_of_people(2000), 8192
    loads = np.array([lengths[batch].sum() for batch in pack(lengths, budget, "packed")])
    assert len(loads) <= -(-lengths.sum() // budget) + 1
    assert loads.min() > 0.95 * loads.max()


def test_packed_batches_mix_long_and_short():
    lengths = lengths_of_people(2000)
    means = [lengths[batch].mean() for batch in pack(lengths, 8192, "packed")]
    assert max(means) < 2 * min(means)


def test_padded_batches_hold_little_padding():
    lengths = lengths_of_people(2000)
    cost = sum(len(batch) * lengths[batch].max() for batch in pack(lengths, 8192, "padded"))
    assert lengths.sum() > 0.9 * cost


@pytest.mark.parametrize("kind", kinds)
def test_documents_that_never_share_do_not_slow_it_down(kind):
    lengths = np.full(20_000, 51, np.int64)  # just over half the budget
    assert len(pack(lengths, 100, kind)) == 20_000


def test_a_document_over_the_budget_is_a_fault_of_the_caller():
    with pytest.raises(ValueError, match="101 tokens is over the budget of 100"):
        pack(np.array([5, 101]), 100, "packed")


@given(some_lengths, st.sampled_from(kinds))
def test_every_token_has_its_own_slot_and_documents_stay_whole(lengths, kind):
    layout = lay_out(lengths, kind)
    slots = layout.slots.numpy()
    assert layout.width == (lengths.sum() if kind == "flat" else lengths.max())
    assert len(np.unique(slots)) == lengths.sum()
    assert slots.max() < layout.processed_tokens
    for document in np.split(slots, np.cumsum(lengths)[:-1]):
        assert np.all(np.diff(document) == 1)
        assert document[0] // layout.width == document[-1] // layout.width
    assert set((slots // layout.width).tolist()) == set(range(layout.rows))


def test_padded_rows_hold_one_document_each():
    layout = lay_out(np.array([2, 3, 1]), "padded")
    assert (layout.rows, layout.width, layout.packed) == (3, 3, False)
    assert layout.slots.tolist() == [0, 1, 3, 4, 5, 6]


def test_packed_rows_are_filled():
    layout = lay_out(np.array([2, 5, 3, 4, 1]), "packed")
    assert (layout.rows, layout.width, layout.packed) == (3, 5, True)
    assert layout.slots.tolist() == [13, 14, 0, 1, 2, 3, 4, 10, 11, 12, 5, 6, 7, 8, 9]


def test_a_flat_row_holds_every_token_in_order_and_no_padding():
    layout = lay_out(np.array([2, 5, 3]), "flat")
    assert (layout.rows, layout.width, layout.packed, layout.flat) == (1, 10, True, True)
    assert layout.slots.tolist() == list(range(10))
    assert layout.processed_tokens == 10


def test_rows_with_padding_are_not_flat():
    assert not lay_out(np.array([2, 5, 3]), "packed").flat
    assert not lay_out(np.array([5]), "padded").flat


def test_positions_restart_in_every_document():
    assert positions_within(np.array([2, 1, 3])).tolist() == [0, 1, 0, 0, 1, 2]
