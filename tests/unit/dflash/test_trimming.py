"""trim: what anchors can see stays, in the same order; what they cannot goes; the drafter sees the same."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dflash.attention import SdpaView
from dflash.batch import Batch, Layout, WindowInfo
from dflash.objective import block_inputs
from dflash.trimming import trim

window = WindowInfo(
    step=0,
    epoch=0,
    batches=1,
    documents=3,
    tokens=1,
    supervised_tokens=1,
    processed_tokens=1,
    denominator=1.0,
)


def make_batch(lengths: list[int], anchors: list[list[int]]) -> Batch:
    """Documents of these lengths, back to back, with anchors at these positions of each."""
    starts = np.cumsum([0, *lengths[:-1]])
    count = sum(lengths)
    packed = [int(start) + a for start, own in zip(starts, anchors, strict=True) for a in own]
    return Batch(
        id=7,
        window=window,
        documents=tuple(range(len(lengths))),
        lengths=tuple(lengths),
        input_ids=torch.arange(100, 100 + count),
        positions=torch.cat([torch.arange(length) for length in lengths]),
        document_ids=torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths)),
        anchors=torch.tensor(packed, dtype=torch.int64),
        labels=torch.zeros(len(packed), 4, dtype=torch.int64),
        weights=torch.zeros(len(packed), 4),
        layout=Layout(rows=1, width=count, slots=torch.arange(count), packed=True),
    )


def test_documents_end_with_their_last_anchor() -> None:
    batch = trim(make_batch([5, 4, 6], [[1, 2], [], [5]]))
    assert batch.sent is not None
    assert batch.kept is not None
    assert batch.sent.lengths == (3, 1, 6)
    assert batch.kept.tolist() == [0, 1, 2, 5, 9, 10, 11, 12, 13, 14]
    assert batch.sent.positions.tolist() == [0, 1, 2, 0, 0, 1, 2, 3, 4, 5]
    assert batch.sent.document_ids.tolist() == [0, 0, 0, 1, 2, 2, 2, 2, 2, 2]
    assert batch.sent.anchors.tolist() == [1, 2, 9]
    assert batch.tokens == 15  # what is counted as trained on stays the same
    assert batch.for_drafter is batch.sent
    assert batch.sent.for_drafter is batch.sent


@pytest.mark.parametrize("seed", range(30))
def test_blocks_ask_the_same_and_see_the_same(seed: int) -> None:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 40, rng.integers(1, 6)).tolist()
    anchors = [sorted(rng.choice(n, rng.integers(0, min(n, 5) + 1), replace=False).tolist()) for n in lengths]
    if not any(anchors):
        anchors[0] = [0]
    whole = make_batch(lengths, anchors)
    batch = trim(whole)
    assert batch.sent is not None
    assert batch.kept is not None
    for ours, theirs in zip(block_inputs(batch.sent, 1), block_inputs(whole, 1), strict=True):
        assert torch.equal(ours, theirs)
    keys = torch.rand(whole.tokens, 1, 8, generator=torch.Generator().manual_seed(seed))
    rows = len(whole.anchors) * 4
    query, own_key, own_value = (
        torch.rand(rows, 1, 8, generator=torch.Generator().manual_seed(100 + i)) for i in range(3)
    )

    class Kinds:
        layer_types = ("full_attention", "sliding_attention")
        sliding_window = 9

    views = [SdpaView.of(b, Kinds(), torch.device("cpu")) for b in (whole, batch.sent)]
    for kind in Kinds.layer_types:
        there = views[0].attend(query, keys, keys, own_key, own_value, kind)
        short = keys[batch.kept]
        here = views[1].attend(query, short, short, own_key, own_value, kind)
        torch.testing.assert_close(here, there)
