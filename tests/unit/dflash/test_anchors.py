import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash.anchors import anchor_candidates, draw_anchors, label_blocks

masks = st.lists(st.booleans(), min_size=1, max_size=40).map(lambda bits: np.array(bits, np.bool_))
everywhere = np.ones(100, np.bool_)


@pytest.mark.parametrize(
    ("key", "anchors"),
    [
        ((0, 0, 0), [17, 22, 31, 34, 59, 70]),
        ((0, 0, 1), [4, 32, 39, 57, 64, 65]),
        ((0, 1, 0), [38, 40, 48, 61, 68, 94]),
        ((1, 0, 0), [10, 14, 22, 32, 51, 79]),
        ((5, 2, 77), [4, 37, 55, 64, 89, 94]),
    ],
)
def test_anchors_of_a_key_are_these_for_ever(key, anchors):
    seed, epoch, document = key
    drawn = draw_anchors(everywhere, seed=seed, epoch=epoch, document=document, limit=6)
    assert drawn.tolist() == anchors


@given(masks)
def test_candidates_are_supervised_and_so_is_their_next(mask):
    expected = [p for p in range(len(mask) - 1) if mask[p] and mask[p + 1]]
    assert anchor_candidates(mask).tolist() == expected


@given(masks, st.integers(0, 5), st.integers(0, 5), st.integers(0, 5), st.integers(1, 45))
def test_draws_are_distinct_ascending_candidates(mask, seed, epoch, document, limit):
    drawn = draw_anchors(mask, seed=seed, epoch=epoch, document=document, limit=limit)
    candidates = anchor_candidates(mask)
    assert len(drawn) == min(limit, len(candidates))
    assert np.all(np.diff(drawn) > 0)
    assert set(drawn.tolist()) <= set(candidates.tolist())


def test_every_candidate_is_drawn_equally_often():
    draws = [draw_anchors(everywhere, seed=0, epoch=0, document=d, limit=9) for d in range(2000)]
    counts = np.bincount(np.concatenate(draws), minlength=99)
    expected = 2000 * 9 / 99
    assert counts[99:].sum() == 0
    assert np.abs(counts[:99] - expected).max() < 6 * math.sqrt(expected)


def slow_label_blocks(ids, mask, anchors, size, gamma):
    """The rule of the specification, one slot at a time."""
    labels, weights = [], []
    for anchor in anchors:
        for slot in range(size):
            place = anchor + slot
            labels.append(ids[min(place, len(ids) - 1)])
            counts = place < len(ids) and slot > 0 and mask[min(place, len(ids) - 1)]
            decay = math.exp(-max(slot - 1, 0) / gamma) if gamma else 1.0
            weights.append(decay if counts else 0.0)
    shape = (len(anchors), size)
    return np.reshape(labels, shape), np.reshape(weights, shape)


@given(masks, st.integers(2, 16), st.sampled_from([None, 0.0, 4.0, 7.0]))
def test_labels_and_weights_follow_the_rule(mask, size, gamma):
    ids = np.arange(100, 100 + len(mask), dtype=np.int32)
    anchors = anchor_candidates(mask)
    labels, weights = label_blocks(ids, mask, anchors, size, gamma)
    expected_labels, expected_weights = slow_label_blocks(ids, mask, anchors.tolist(), size, gamma)
    assert (labels.dtype, weights.dtype) == (np.int64, np.float32)
    assert labels.tolist() == expected_labels.tolist()
    np.testing.assert_allclose(weights, expected_weights, rtol=1e-6)


def test_a_hand_counted_block():
    ids = np.array([10, 11, 12, 13, 14, 15])
    mask = np.array([0, 0, 1, 1, 0, 1], np.bool_)
    labels, weights = label_blocks(ids, mask, np.array([2]), 5, 2.0)
    assert labels.tolist() == [[12, 13, 14, 15, 15]]
    np.testing.assert_allclose(weights, [[0, 1, 0, math.exp(-1), 0]], rtol=1e-6)


def test_blocks_never_see_the_next_document():
    first, second = np.array([1, 2, 3]), np.array([7, 8, 9, 10])
    mask = np.ones(7, np.bool_)
    anchors, ends = np.array([1, 3]), np.array([3, 7])
    labels, weights = label_blocks(np.concatenate([first, second]), mask, anchors, 4, None, ends=ends)
    assert labels.tolist() == [[2, 3, 3, 3], [7, 8, 9, 10]]
    assert weights.tolist() == [[0, 1, 0, 0], [0, 1, 1, 1]]
