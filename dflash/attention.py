"""Who sees whom in a drafter, and the attention that keeps to it by SDPA, document by document.

A view is that for one batch. This one runs everywhere; `dflash/flex_attention.py` has the one for GPUs.

A block whose anchor sits at position `a` of its document sees that document's target states at positions
strictly before `a`, and itself; never another block. Full layers see the whole block both ways. Sliding
layers are causal inside the block and see keys less than `window` behind the query, which sits at `a + slot`.

Shapes: T context tokens, A blocks of b slots, Q = A*b queries, D head width. Knows nothing of weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from dflash.batch import Batch
from dflash.contract.activations import blocks_per_call

full, sliding = "full_attention", "sliding_attention"


class View(Protocol):
    """Who sees whom in one packed batch. Views may want rows padded; padding sees nothing real."""

    def attend(
        self,
        query: Tensor,
        context_key: Tensor,
        context_value: Tensor,
        block_key: Tensor,
        block_value: Tensor,
        kind: str,
    ) -> Tensor:
        """Attention of the blocks over context and themselves in a layer of type `kind`.

        query [Q, heads, D]; context_key, context_value [T, kv_heads, D]; block_key, block_value
        [Q, kv_heads, D], all with the view's padding. `heads` is a multiple of `kv_heads`. Returns
        [Q, heads, D].
        """

    def pad_context(self, rows: Tensor) -> Tensor:
        """Context rows [T, …] with the padding that `attend` wants, zeros."""

    def pad_blocks(self, rows: Tensor) -> Tensor:
        """Block rows [Q, …] with the padding that `attend` wants, zeros."""


class LayerKinds(Protocol):
    """What visibility needs to know of a drafter."""

    @property
    def layer_types(self) -> tuple[str, ...]:
        """For each layer: `full` or `sliding`."""

    @property
    def sliding_window(self) -> int:
        """Keys that a sliding layer sees."""


@dataclass(frozen=True, slots=True)
class Call:
    """Consecutive blocks of one document, the context they may see, and the mask over both."""

    blocks: int
    context: slice  # positions in the document
    mask: Tensor  # [blocks*b, context + blocks*b] bool, True: visible


@dataclass(frozen=True, slots=True)
class SdpaView:
    """The blocks of a packed batch document by document, with masks for each layer type, on one device."""

    block_size: int
    lengths: tuple[int, ...]  # context tokens of each document, [D]
    blocks: tuple[int, ...]  # blocks of each document, [D]
    calls: dict[str, tuple[tuple[Call, ...], ...]]  # layer type: for each document

    @classmethod
    def of(cls, batch: Batch, layers: LayerKinds, device: torch.device) -> SdpaView:
        """The view of `batch` for these layers. Masks are made on `device`, once for all layers of a type."""
        counts = torch.bincount(batch.document_ids[batch.anchors], minlength=len(batch.lengths)).tolist()
        anchors = batch.positions[batch.anchors]
        return cls.over(anchors, counts, batch.lengths, batch.labels.shape[1], layers, device)

    @classmethod
    def over(
        cls,
        anchors: Tensor,
        blocks: Sequence[int],
        lengths: tuple[int, ...],
        block_size: int,
        layers: LayerKinds,
        device: torch.device,
        *,
        sizes: Tensor | None = None,
    ) -> SdpaView:
        """The view of so many `blocks` in each document of these `lengths`.

        anchors: [A] on the CPU, positions in their documents, ascending in each. sizes: [A] on the CPU, slots
        that each block really has, the others being seen by none but themselves; without it all `block_size`.
        """
        if sizes is None:
            sizes = torch.full_like(anchors, block_size)
        counts = list(blocks)
        parts = [torch.split(x, counts) for x in (anchors, upload(anchors, device), upload(sizes, device))]
        per_document = list(zip(*parts, strict=True))
        calls = {
            kind: tuple(
                _calls(
                    here, there, there_sizes, block_size, layers.sliding_window if kind == sliding else None
                )
                for here, there, there_sizes in per_document
            )
            for kind in sorted(set(layers.layer_types))
        }
        return cls(block_size, lengths, tuple(counts), calls)

    def attend(
        self,
        query: Tensor,
        context_key: Tensor,
        context_value: Tensor,
        block_key: Tensor,
        block_value: Tensor,
        kind: str,
    ) -> Tensor:
        """See View."""
        rows, heads, width = query.shape
        kv_heads = context_key.shape[1]
        # [kv_heads, heads per kv head, Q, D]: keys are broadcast over the second axis, never copied.
        queries = query.view(rows, kv_heads, heads // kv_heads, width).permute(1, 2, 0, 3)
        out = []
        slots = [count * self.block_size for count in self.blocks]
        # Split, not sliced: the gradient of a split is one concatenation, that of a slice a tensor of zeros.
        documents = zip(
            torch.split(queries, slots, dim=2),
            *(
                torch.split(x.transpose(0, 1), list(self.lengths), dim=1)
                for x in (context_key, context_value)
            ),
            *(torch.split(x.transpose(0, 1), slots, dim=1) for x in (block_key, block_value)),
            self.calls[kind],
            strict=True,
        )
        for q, context_k, context_v, block_k, block_v, calls in documents:
            first = 0
            for call in calls:
                own = slice(first, first := first + call.blocks * self.block_size)
                key = torch.cat([context_k[:, call.context], block_k[:, own]], dim=1)
                value = torch.cat([context_v[:, call.context], block_v[:, own]], dim=1)
                out.append(_sdpa(q[:, :, own], key, value, call.mask))
        return torch.cat(out, dim=2).permute(2, 0, 1, 3).reshape(rows, heads, width)

    def pad_context(self, rows: Tensor) -> Tensor:
        """As they are."""
        return rows

    def pad_blocks(self, rows: Tensor) -> Tensor:
        """As they are."""
        return rows


def upload(tensor: Tensor, device: torch.device) -> Tensor:
    """`tensor` on `device`; to CUDA through pinned memory, as a pageable copy waits for earlier work."""
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def _calls(
    here: Tensor, there: Tensor, sizes: Tensor, block_size: int, window: int | None
) -> tuple[Call, ...]:
    """The calls of one document. `here` and `there`: its anchor positions on the CPU and on the device."""
    groups = zip(*(torch.split(x, blocks_per_call) for x in (here, there, sizes)), strict=True)
    found = []
    for group, anchors, real in groups:
        if group.numel() == 0:
            continue
        first, last = int(group[0]), int(group[-1])
        context = slice(0 if window is None else max(0, first - window + 1), last)
        found.append(Call(len(group), context, _mask(anchors, real, block_size, context, window)))
    return tuple(found)


def _mask(anchors: Tensor, sizes: Tensor, block_size: int, context: slice, window: int | None) -> Tensor:
    place = anchors.device
    slot = torch.arange(block_size, device=place).repeat(len(anchors))
    block = torch.arange(len(anchors), device=place).repeat_interleave(block_size)
    position = anchors[block] + slot
    key = torch.arange(context.start, context.stop, device=place)
    sees_context = key < anchors[block][:, None]
    sees_block = (block[:, None] == block) & ((slot < sizes[block]) | (slot[:, None] == slot))
    if window is not None:
        sees_context &= position[:, None] - key < window
        behind = slot[:, None] - slot
        sees_block &= (behind >= 0) & (behind < window)
    return torch.cat([sees_context, sees_block], dim=1)


def _sdpa(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    """One call: query [kv, groups, n, D], key and value [kv, s, D], mask [n, s]."""
    groups = query.shape[1]
    key, value = (x[:, None].expand(-1, groups, -1, -1) for x in (key, value))
    return functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
