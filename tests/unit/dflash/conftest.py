"""Packed batches for tests of the model side."""

from collections.abc import Callable, Sequence
from dataclasses import fields

import pytest
import torch

from dflash.batch import Batch, Layout, WindowInfo

MakeBatch = Callable[..., Batch]


@pytest.fixture
def make_batch() -> MakeBatch:
    return build_batch


def build_batch(
    documents: Sequence[Sequence[int]],
    anchors: Sequence[Sequence[int]],
    block_size: int,
    *,
    packed: bool = True,
) -> Batch:
    """Documents of token ids, anchors by position in each; every slot past 0 inside the document counts 1."""
    lengths = [len(document) for document in documents]
    starts = [sum(lengths[:i]) for i in range(len(lengths))]
    ids = torch.tensor([token for document in documents for token in document])
    positions = torch.cat([torch.arange(length) for length in lengths])
    numbers = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    packed_anchors = torch.tensor([s + a for s, row in zip(starts, anchors, strict=True) for a in row]).long()
    slots = packed_anchors[:, None] + torch.arange(block_size)
    clamped = slots.clamp(max=len(ids) - 1)
    inside = (slots < len(ids)) & (numbers[clamped] == numbers[packed_anchors][:, None])
    weights = (inside & (torch.arange(block_size) > 0)).float()
    if packed:
        layout = Layout(rows=1, width=len(ids), slots=torch.arange(len(ids)), packed=True)
    else:
        width = max(lengths)
        layout = Layout(rows=len(lengths), width=width, slots=numbers * width + positions, packed=False)
    window = WindowInfo(**{f.name: 1 for f in fields(WindowInfo)})  # nothing here looks at it
    return Batch(
        id=0,
        window=window,
        documents=tuple(range(len(lengths))),
        lengths=tuple(lengths),
        input_ids=ids,
        positions=positions,
        document_ids=numbers,
        anchors=packed_anchors,
        labels=ids[clamped],
        weights=weights,
        layout=layout,
    )
