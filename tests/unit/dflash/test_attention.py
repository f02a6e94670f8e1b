import math
import random
from types import SimpleNamespace

import pytest
import torch

from dflash import attention
from dflash.attention import SdpaView, full, sliding

cpu = torch.device("cpu")


def view_of(batch, kinds=(full, sliding), window=6):
    return SdpaView.of(batch, SimpleNamespace(layer_types=kinds, sliding_window=window), cpu)


def dense_mask(batch, kind, window):
    """The rule written out token by token: [Q, T + Q]."""
    block_size = batch.labels.shape[1]
    tokens, blocks = batch.tokens, len(batch.anchors)
    mask = torch.zeros(blocks * block_size, tokens + blocks * block_size, dtype=torch.bool)
    for block, anchor in enumerate(batch.anchors.tolist()):
        for slot in range(block_size):
            row = mask[block * block_size + slot]
            position = int(batch.positions[anchor]) + slot
            for key in range(anchor):
                same = batch.document_ids[key] == batch.document_ids[anchor]
                near = kind == full or position - int(batch.positions[key]) < window
                row[key] = same and near
            for other in range(block_size):
                near = kind == full or (other <= slot and slot - other < window)
                row[tokens + block * block_size + other] = near
    return mask


def dense_attention(query, context, blocks, mask):
    """Plain softmax attention in float64 with every key at once. context and blocks: (key, value)."""
    groups = query.shape[1] // context[0].shape[1]
    key, value = (
        torch.cat([c, b]).repeat_interleave(groups, dim=1).double()
        for c, b in zip(context, blocks, strict=True)
    )
    scores = torch.einsum("qhd,khd->hqk", query.double(), key) / math.sqrt(query.shape[-1])
    weights = scores.masked_fill(~mask, -math.inf).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, value)


def draw_tensors(batch, heads=4, kv_heads=2, width=8):
    generator = torch.Generator().manual_seed(0)
    queries = batch.labels.numel()

    def draw(rows, count):
        return torch.randn(rows, count, width, generator=generator, requires_grad=True)

    context = (draw(batch.tokens, kv_heads), draw(batch.tokens, kv_heads))
    blocks = (draw(queries, kv_heads), draw(queries, kv_heads))
    return draw(queries, heads), context, blocks


def random_anchors(rng, length):
    return sorted(rng.sample(range(length), rng.randint(0, min(length, 9))))


@pytest.mark.parametrize("kind", [full, sliding])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("blocks_per_call", [1, 3, 32])
def test_equals_dense_attention_over_the_written_rule(kind, seed, blocks_per_call, make_batch, monkeypatch):
    monkeypatch.setattr(attention, "blocks_per_call", blocks_per_call)
    rng = random.Random(seed)
    lengths = [rng.randint(1, 30) for _ in range(4)]
    anchors = [random_anchors(rng, n) for n in lengths]
    anchors[1] = []
    anchors[0] = [0, *anchors[0][1:]] if anchors[0] else [0]  # a block without context
    batch = make_batch([[1] * n for n in lengths], anchors, 4)
    query, context, blocks = draw_tensors(batch)

    out = view_of(batch).attend(query, *context, *blocks, kind)

    expected = dense_attention(query, context, blocks, dense_mask(batch, kind, 6))
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)
    inputs = [query, *context, *blocks]
    seeds = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
    ours = torch.autograd.grad(out, inputs, seeds, allow_unused=True)
    theirs = torch.autograd.grad(expected, inputs, seeds.double(), allow_unused=True)
    for own, reference in zip(ours, theirs, strict=True):
        torch.testing.assert_close(own, reference, rtol=1e-4, atol=1e-5)


def test_window_shorter_than_the_block_hides_its_first_slots(make_batch):
    batch = make_batch([[1] * 12], [[7]], 6)
    (call,) = view_of(batch, window=2).calls[sliding][0]
    own = call.mask[:, -6:]
    assert own.sum(1).tolist() == [1, 2, 2, 2, 2, 2]
    assert (call.context.start, call.context.stop) == (6, 7)
    assert call.mask[:, 0].tolist() == [True, False, False, False, False, False]


def test_documents_without_anchors_cost_no_call(make_batch):
    view = view_of(make_batch([[1] * 9, [1] * 9, [1] * 9], [[], [3], []], 4))
    assert [len(calls) for calls in view.calls[full]] == [0, 1, 0]


def test_context_past_the_last_anchor_of_a_call_is_not_read(make_batch):
    view = view_of(make_batch([[1] * 100], [[10, 20]], 4))
    (call,) = view.calls[full][0]
    assert call.mask.shape == (8, 20 + 8)


def test_masks_are_made_only_for_the_layer_types_in_use(make_batch):
    assert view_of(make_batch([[1] * 9], [[3]], 4), kinds=(full, full)).calls.keys() == {full}


@pytest.mark.parametrize("kind", [full, sliding])
def test_slots_that_a_block_does_not_have_are_seen_by_none(kind, make_batch):
    """A block of which only some slots are real attends as one of that size by itself."""
    block_size, anchors, sizes = 6, [3, 9, 14], [4, 6, 1]
    batch = make_batch([list(range(15))], [anchors], block_size)
    query, context, blocks = draw_tensors(batch)
    layers = SimpleNamespace(layer_types=(kind,), sliding_window=5)

    def attend(at, size, rows, real=None):
        view = SdpaView.over(torch.tensor(at), [len(at)], (15,), size, layers, cpu, sizes=real)
        return view.attend(query[rows], *context, *(x[rows] for x in blocks), kind)

    together = attend(anchors, block_size, slice(None), torch.tensor(sizes))
    for number, (anchor, size) in enumerate(zip(anchors, sizes, strict=True)):
        rows = slice(number * block_size, number * block_size + size)
        torch.testing.assert_close(together[rows], attend([anchor], size, rows))
    whole = attend(anchors, block_size, slice(None))
    same = torch.isclose(together, whole).all(-1).all(-1).view(3, block_size)
    assert same[1].all()
    assert same[0, :4].all() == (kind == sliding)  # causal ones see no slot behind them
