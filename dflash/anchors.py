"""Anchors of a document, and the labels and loss weights of their blocks.

An anchor is the known first slot of a block; slot `j` predicts the token `j` places after it. Draws depend on
the seed, the epoch and the document alone, so that packing, split and timing cannot change them.
Knows nothing of windows or batches.

Shapes: L tokens of a document, A anchors, b block size, T tokens of several documents back to back.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dflash.random_keys import random_keys

Mask = NDArray[np.bool_]
Positions = NDArray[np.int64]


def anchor_candidates(loss_mask: Mask) -> Positions:
    """Positions that are supervised and whose next token is: [C] of `loss_mask` [L]."""
    return np.flatnonzero(loss_mask[:-1] & loss_mask[1:])


def draw_anchors(loss_mask: Mask, *, seed: int, epoch: int, document: int, limit: int) -> Positions:
    """At most `limit` candidates of `loss_mask` [L], uniformly without replacement, ascending: [A]."""
    candidates = anchor_candidates(loss_mask)
    if len(candidates) <= limit:
        return candidates
    keys = random_keys(len(candidates), seed=seed, purpose="anchors", epoch=epoch, document=document)
    return np.sort(candidates[np.argsort(keys, kind="stable")[:limit]])


def label_blocks(
    ids: NDArray[np.integer],
    loss_mask: Mask,
    anchors: Positions,
    block_size: int,
    gamma: float | None,
    *,
    ends: Positions | None = None,
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Labels [A, b] and loss weights [A, b] of the blocks at `anchors`.

    A slot counts when it is not slot 0, lies inside its document and is supervised; slot `j` then weighs
    exp(-(j - 1) / gamma), or 1 without `gamma`. `ids` and `loss_mask` may hold several documents back to back
    ([T]); `ends` [A] then says where the document of each anchor ends.
    """
    slot = np.arange(block_size)
    stop = np.full(len(anchors), len(ids)) if ends is None else ends
    place = anchors[:, None] + slot
    inside = place < stop[:, None]
    place = np.minimum(place, stop[:, None] - 1)
    counts = inside & (slot > 0) & loss_mask[place]
    weight = np.exp(-np.maximum(slot - 1, 0) / gamma) if gamma else np.ones(block_size)
    return ids[place].astype(np.int64), np.where(counts, weight, 0.0).astype(np.float32)
