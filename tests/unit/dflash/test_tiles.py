"""Tiles against the rule of visibility written out."""

import random

import numpy as np
import pytest

from dflash.tiles import mask_tiles, padded, tile

block_size = 16


def tiles_of(batch, window):
    return mask_tiles(batch.anchors.numpy(), batch.positions.numpy(), batch.labels.shape[1], window)


def draw(rng, lengths, anchors_each):
    return [sorted(rng.sample(range(n), min(n, rng.randint(0, anchors_each)))) for n in lengths]


def visible(batch, window, block_size):
    """[rows, keys] bool of all rows and keys, padding included; keys are block slots, then context."""
    anchors, tokens = batch.anchors.tolist(), batch.tokens
    offset = padded(len(anchors) * block_size)
    out = np.zeros((offset, offset + padded(tokens)), bool)
    documents, positions = batch.document_ids.numpy(), batch.positions.numpy()
    for block, anchor in enumerate(anchors):
        for slot in range(block_size):
            sees = (np.arange(tokens) < anchor) & (documents == documents[anchor])
            if window is not None:
                sees &= positions[anchor] + slot - positions < window
            out[block * block_size + slot, offset : offset + tokens] = sees
    return out


def spread(ordered, shape):
    """The tiles of an Ordered as a bool matrix."""
    out = np.zeros(shape, bool)
    for row, (count, columns) in enumerate(zip(ordered.counts, ordered.columns, strict=True)):
        assert sorted(columns.tolist()) == list(range(shape[1]))
        out[row, columns[:count]] = True
    return out


@pytest.mark.parametrize("window", [None, 40, 300])
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("block_size", [16, 10])
def test_tiles_cover_what_is_seen_and_whole_ones_nothing_else(seed, window, block_size, make_batch):
    rng = random.Random(seed)
    lengths = [rng.randint(1, 420) for _ in range(4)]
    batch = make_batch([[1] * n for n in lengths], draw(rng, lengths, 20), block_size)
    mask = tiles_of(batch, window)
    seen = visible(batch, window, block_size)
    rows = np.arange(len(seen))
    keys = np.arange(seen.shape[1])
    context = (keys >= mask.first[:, None]) & (keys < mask.last[:, None])
    assert np.array_equal(context, seen)

    own = (rows[:, None] // block_size == keys // block_size) & (keys < len(rows))
    shape = (len(rows) // tile, len(keys) // tile)
    by_tile = (seen | own).reshape(shape[0], tile, shape[1], tile)
    partial, whole = spread(mask.partial, shape), spread(mask.whole, shape)
    assert np.array_equal(whole, seen.reshape(by_tile.shape).all(axis=(1, 3)))
    assert np.array_equal(partial | whole, by_tile.any(axis=(1, 3)))
    assert not (partial & whole).any()
    assert np.array_equal(spread(mask.partial_by_key, shape[::-1]), partial.T)
    assert np.array_equal(spread(mask.whole_by_key, shape[::-1]), whole.T)


def test_some_tiles_are_whole(make_batch):
    batch = make_batch([[1] * 1024], [list(range(900, 980))], block_size)
    assert tiles_of(batch, None).whole.counts.tolist() == [7] * 10


def test_a_batch_without_anchors_has_two_tiles_of_padding(make_batch):
    mask = tiles_of(make_batch([[1] * 130], [[]], block_size), None)
    assert (mask.first.tolist(), mask.last.tolist()) == ([0] * 2 * tile, [0] * 2 * tile)
    assert mask.partial.counts.tolist() == [1, 1]
    assert mask.partial.columns[:, 0].tolist() == [0, 1]
    assert mask.whole.counts.tolist() == [0, 0]


@pytest.mark.parametrize(("rows", "expected"), [(0, 256), (1, 256), (256, 256), (257, 384)])
def test_rows_are_padded_to_whole_tiles_at_least_two(rows, expected):
    assert padded(rows) == expected
