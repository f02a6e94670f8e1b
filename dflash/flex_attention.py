"""Attention of drafter blocks by FlexAttention: the view for GPUs. It means what `SdpaView` means.

Rows are padded to whole tiles; padding sees itself only. FlexAttention has no backward on the CPU. Knows
nothing of weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from dflash.attention import LayerKinds, sliding, upload
from dflash.batch import Batch
from dflash.tiles import TileMask, mask_tiles, padded, tile

MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


class DeviceMask(NamedTuple):
    """The arrays of a TileMask on a device."""

    first: Tensor  # [Q] int32
    last: Tensor  # [Q]
    counts: Tensor  # [1, 1, n] tiles partly seen, and their columns
    columns: Tensor  # [1, 1, n, m]
    whole_counts: Tensor  # tiles seen whole
    whole_columns: Tensor
    counts_by_key: Tensor  # [1, 1, m]
    columns_by_key: Tensor  # [1, 1, m, n]
    whole_counts_by_key: Tensor
    whole_columns_by_key: Tensor

    @classmethod
    def of(cls, plan: TileMask, device: torch.device) -> DeviceMask:
        """The mask on `device`, by one upload."""
        arrays = plan.arrays()
        flat = upload(torch.from_numpy(np.concatenate([array.ravel() for array in arrays])), device)
        parts = torch.split(flat, [array.size for array in arrays])
        first, last, *ordered = (part.view(array.shape) for part, array in zip(parts, arrays, strict=True))
        mask = cls(first, last, *(part[None, None] for part in ordered))
        for array, dims in zip(mask, ((0,), (0,), *((2,), (2, 3)) * 4), strict=True):
            torch._dynamo.maybe_mark_dynamic(array, dims)
        return mask


def plan_tiles(batch: Batch, layers: LayerKinds) -> dict[str, TileMask]:
    """The masks of a batch by layer type, on the CPU."""
    anchors, positions, block_size = batch.anchors.numpy(), batch.positions.numpy(), batch.labels.shape[1]
    windows = {kind: layers.sliding_window if kind == sliding else None for kind in set(layers.layer_types)}
    return {
        kind: mask_tiles(anchors, positions, block_size, window) for kind, window in sorted(windows.items())
    }


class FlexView:
    """The blocks of a packed batch with block-sparse masks on one device."""

    def __init__(
        self,
        masks: Mapping[str, DeviceMask],
        *,
        block_size: int,
        window: int,
        context_rows: int,
        block_rows: int,
    ) -> None:
        self.masks, self.block_size, self.window = dict(masks), block_size, window
        self.context_rows, self.block_rows = context_rows, block_rows

    @classmethod
    def of(cls, batch: Batch, layers: LayerKinds, device: torch.device) -> FlexView:
        """The view of `batch`, from the tiles it carries or from new ones."""
        plans = batch.tiles or plan_tiles(batch, layers)
        block_size = batch.labels.shape[1]
        return cls(
            {kind: DeviceMask.of(plan, device) for kind, plan in plans.items()},
            block_size=block_size,
            window=layers.sliding_window,
            context_rows=padded(batch.tokens),
            block_rows=padded(batch.anchors.numel() * block_size),
        )

    def attend(
        self,
        query: Tensor,
        context_key: Tensor,
        context_value: Tensor,
        block_key: Tensor,
        block_value: Tensor,
        kind: str,
    ) -> Tensor:
        """See `View`."""
        key = torch.cat([block_key, context_key]).transpose(0, 1)[None]
        value = torch.cat([block_value, context_value]).transpose(0, 1)[None]
        mask = self.masks[kind]
        block_mask = BlockMask(
            (query.shape[0], key.shape[2]),
            mask.counts,
            mask.columns,
            mask.whole_counts,
            mask.whole_columns,
            mask.counts_by_key,
            mask.columns_by_key,
            mask.whole_counts_by_key,
            mask.whole_columns_by_key,
            BLOCK_SIZE=(tile, tile),
            mask_mod=_full_mask(mask.first, mask.last, self.block_size)
            if kind != sliding
            else _sliding_mask(mask.first, mask.last, self.block_size, self.window),
        )
        out = flex_attention(query.transpose(0, 1)[None], key, value, block_mask=block_mask, enable_gqa=True)
        assert isinstance(out, Tensor)
        return out[0].transpose(0, 1)

    def pad_context(self, rows: Tensor) -> Tensor:
        """See `View`."""
        return _pad(rows, self.context_rows)

    def pad_blocks(self, rows: Tensor) -> Tensor:
        """See `View`."""
        return _pad(rows, self.block_rows)


def _pad(rows: Tensor, count: int) -> Tensor:
    """`rows` with rows of zeros behind, `count` in all."""
    missing = count - len(rows)
    return functional.pad(rows, (0, 0) * (rows.dim() - 1) + (0, missing)) if missing else rows


def _full_mask(first: Tensor, last: Tensor, block_size: int) -> MaskMod:
    def sees(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return ((key >= first[query]) & (key < last[query])) | (key // block_size == query // block_size)

    return sees


def _sliding_mask(first: Tensor, last: Tensor, block_size: int, window: int) -> MaskMod:
    def sees(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        own = (key // block_size == query // block_size) & (key <= query) & (query - key < window)
        return ((key >= first[query]) & (key < last[query])) | own

    return sees
