"""Leaves out the states that no anchor reads: a document's tokens behind its last anchor.

A block sees its document strictly before its anchor, so nothing of the loss depends on those states; products
of matrices that are shorter may round differently. Knows nothing of targets, transports or drafters.
"""

from __future__ import annotations

import dataclasses

import torch

from dflash.batch import Batch


def trim(batch: Batch) -> Batch:
    """The batch with `kept` and `sent`: what is left when each document ends with its last anchor.

    The anchor's own token stays, since its number is the block's first input; of a document without anchors
    one token stays.
    """
    first = torch.tensor([0, *batch.lengths[:-1]]).cumsum(0)  # of each document
    ends = first + 1
    owners = batch.document_ids[batch.anchors]
    ends = ends.scatter_reduce(0, owners, batch.anchors + 1, "amax")  # one past what is kept
    kept = torch.nonzero(torch.arange(batch.tokens) < ends[batch.document_ids])[:, 0]
    lengths = ends - first
    left_out = first - (lengths.cumsum(0) - lengths)  # tokens before each document that are gone
    sent = dataclasses.replace(
        batch,
        lengths=tuple(lengths.tolist()),
        input_ids=batch.input_ids[kept],
        positions=batch.positions[kept],
        document_ids=batch.document_ids[kept],
        anchors=batch.anchors - left_out[owners],
    )
    return dataclasses.replace(batch, kept=kept, sent=sent)
