"""The counted activations are those that autograd keeps, storage by storage."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from dflash.attention import SdpaView, full, sliding
from dflash.batch import Batch
from dflash.contract.activations import BatchShape, DrafterShape, DrafterWork, total
from dflash.drafter import Drafter, DrafterSpec, init_drafter
from dflash.flex_attention import FlexView

# All widths differ, so that no count can stand in for another.
widths = {"hidden": 80, "layers": 3, "heads": 6, "kv_heads": 2, "head_dim": 16, "intermediate": 208}
anchors = [[(i + 1) * 90 // 70 - 1 for i in range(70)], [*range(4, 30, 5)]]
lengths = (90, 30)


def make_spec(layer_types: tuple[str, ...]) -> DrafterSpec:
    return DrafterSpec(
        **widths,
        taps=(1, 2, 3),
        block_size=4,
        layer_types=layer_types,
        sliding_window=4096,
        mask_token_id=0,
        rope_theta=1e4,
        rms_eps=1e-6,
        vocab=50,
        max_positions=512,
        target_layers=5,
    )


def shape_of(spec: DrafterSpec, each_bytes: int) -> DrafterShape:
    return DrafterShape(
        **widths,
        taps=len(spec.taps),
        block_size=spec.block_size,
        kinds=len(set(spec.layer_types)),
        vocab=spec.vocab,
        each_bytes=each_bytes,
    )


def kept_bytes(run: Callable[[], Tensor], known: list[Tensor]) -> int:
    """Bytes of the different storages that autograd keeps in `run`, with the result's, but for `known`."""
    skipped = {tensor.untyped_storage().data_ptr() for tensor in known}
    found: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in skipped:
            found[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        keep(run())
    return sum(tensor.untyped_storage().nbytes() for tensor in found.values())


def drafter_bytes(make_batch: Callable[..., Batch], spec: DrafterSpec, dtype: torch.dtype) -> int:
    batch = make_batch([[1] * length for length in lengths], anchors, spec.block_size)
    drafter: Drafter = init_drafter(spec, 0).to(dtype)
    features = torch.randn(batch.tokens, len(spec.taps) * spec.hidden, dtype=dtype)
    slots = batch.anchors.numel() * spec.block_size
    blocks = torch.randn(slots, spec.hidden, dtype=dtype)
    view = SdpaView.of(batch, spec, torch.device("cpu"))
    known = [features, blocks, *drafter.parameters()]
    return kept_bytes(lambda: drafter(features, batch.positions, blocks, torch.arange(slots), view), known)


def batch_shape() -> BatchShape:
    documents = tuple((length, len(row)) for length, row in zip(lengths, anchors, strict=True))
    return BatchShape(documents=documents, rows=1, width=sum(lengths), masked=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kinds", [(full,) * 3, (sliding, sliding, full)])
def test_plain_layers_keep_what_is_counted(
    make_batch: Callable[..., Batch], dtype: torch.dtype, kinds: tuple[str, ...]
) -> None:
    spec = make_spec(kinds)
    found = drafter_bytes(make_batch, spec, dtype)
    work = DrafterWork(
        shape=shape_of(spec, dtype.itemsize),
        batch=batch_shape(),
        compiled=False,
        fused_loss=False,
        checkpointing=False,
        chunk_blocks=0,
    )
    masks = next(term.bytes for term in work.kept() if term.name == "masks")  # the view holds them
    counted = total((*work.kept(), *work.closing())) - masks
    assert counted == pytest.approx(found, rel=0.005)


def test_compiled_layers_keep_what_is_counted(
    make_batch: Callable[..., Batch], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The compiler's cut is made before it knows of a device; only FlexAttention itself insists on a GPU.
    monkeypatch.setattr("torch.nn.attention.flex_attention._validate_device", lambda *_: None)
    spec = make_spec((full,) * 3)
    batch = make_batch([[1] * length for length in lengths], anchors, spec.block_size)
    view = FlexView.of(batch, spec, torch.device("cpu"))
    layer = init_drafter(spec, 0).bfloat16().layers[0]
    x = torch.randn(view.block_rows, spec.hidden, dtype=torch.bfloat16, requires_grad=True)
    context = torch.randn(view.context_rows, spec.hidden, dtype=torch.bfloat16, requires_grad=True)
    tables = [torch.rand(rows, 1, spec.head_dim).bfloat16() for rows in (len(context),) * 2 + (len(x),) * 2]
    run = torch.compile(layer, backend="aot_eager_decomp_partition", fullgraph=True)
    masks = [tensor for mask in view.masks.values() for tensor in mask]
    known = [context, *tables, *masks, *layer.parameters()]
    leaving = x.nbytes  # enters the next layer, and is counted there
    found = kept_bytes(lambda: run(x, context, (tables[:2], tables[2:]), view), known) - leaving
    work = DrafterWork(
        shape=shape_of(spec, 2),
        batch=batch_shape(),
        compiled=True,
        fused_loss=True,
        checkpointing=True,
        chunk_blocks=0,
    )
    assert total(work.recomputed()) == pytest.approx(found, rel=0.005)
