"""FlexAttention's view against SDPA's; eager, as the CPU has no kernel or gradient (tests/gpu has both)."""

import random
from types import SimpleNamespace

import pytest
import torch

from dflash.attention import SdpaView, full, sliding
from dflash.flex_attention import FlexView, plan_tiles

cpu = torch.device("cpu")
layers = SimpleNamespace(layer_types=(full, sliding), sliding_window=40)


def draw_batch(make_batch, seed):
    rng = random.Random(seed)
    lengths = [rng.randint(1, 300) for _ in range(4)]
    anchors = [sorted(rng.sample(range(n), min(n, rng.randint(1, 9)))) for n in lengths]
    return make_batch([[1] * n for n in lengths], anchors, 16)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("kind", [full, sliding])
@pytest.mark.parametrize("seed", range(4))
def test_means_what_sdpa_by_document_means(seed, kind, make_batch):
    batch = draw_batch(make_batch, seed)
    generator = torch.Generator().manual_seed(seed)
    rows = batch.labels.numel()
    query = torch.randn(rows, 4, 8, generator=generator)
    context = [torch.randn(batch.tokens, 2, 8, generator=generator) for _ in range(2)]
    blocks = [torch.randn(rows, 2, 8, generator=generator) for _ in range(2)]
    expected = SdpaView.of(batch, layers, cpu).attend(query, *context, *blocks, kind)

    view = FlexView.of(batch, layers, cpu)
    out = view.attend(
        view.pad_blocks(query),
        *(view.pad_context(x) for x in context),
        *(view.pad_blocks(x) for x in blocks),
        kind,
    )

    torch.testing.assert_close(out[:rows], expected)
    assert torch.isfinite(out).all()


def test_tiles_that_a_batch_carries_are_used(make_batch):
    batch = draw_batch(make_batch, 0)
    other = draw_batch(make_batch, 1)
    object.__setattr__(batch, "tiles", plan_tiles(other, layers))
    mask = FlexView.of(batch, layers, cpu).masks[full]
    assert mask.first.tolist() == plan_tiles(other, layers)[full].first.tolist()


def test_padding_adds_rows_of_zeros_up_to_whole_tiles(make_batch):
    view = FlexView.of(make_batch([[1] * 130], [[1, 2]], 16), layers, cpu)
    assert view.pad_context(torch.ones(130, 3)).sum(1).tolist() == [3.0] * 130 + [0.0] * 126
    assert view.pad_blocks(torch.ones(32, dtype=torch.int64)).tolist() == [1] * 32 + [0] * 224
