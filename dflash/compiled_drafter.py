"""The parts of a drafter compiled: norms, rotations and activations become few kernels around the products.

One graph serves all layers of a type and any number of rows. Rows come in whole tiles and enter as
[n, tile, …], so that the compiler knows them to be divisible. Knows nothing of losses or batches.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from dflash.attention import View
from dflash.compiling import compiled
from dflash.contract.errors import DFlashError
from dflash.drafter import Drafter, Layer, RMSNorm, Rotation, without_states
from dflash.tiles import tile


class CompiledRunner:
    """See LayerRunner; for views with rows in whole tiles."""

    def __init__(self, *, checkpointing: bool = False) -> None:
        self.checkpointing = checkpointing
        self._fuse: Callable[..., Tensor] = compiled(_fuse, dynamic=None)
        self._run: Callable[..., Tensor] = compiled(_run, dynamic=None)
        self._close: Callable[..., Tensor] = compiled(_close, dynamic=None)

    def fuse(self, drafter: Drafter, features: Tensor) -> Tensor:
        """See LayerRunner."""
        return self._fuse(drafter, _tiles(features)).flatten(0, 1)

    def run(
        self, layer: Layer, x: Tensor, context: Tensor, rotations: tuple[Rotation, Rotation], view: View
    ) -> Tensor:
        """See LayerRunner."""
        tables = tuple(_tiles(table) for rotation in rotations for table in rotation)
        inputs = (layer, _tiles(x), _tiles(context), tables, view)
        if self.checkpointing:
            out: Tensor = checkpoint(self._run, *inputs, **without_states)
        else:
            out = self._run(*inputs)
        return out.flatten(0, 1)

    def close(self, norm: RMSNorm, x: Tensor) -> Tensor:
        """See LayerRunner."""
        return self._close(norm, _tiles(x)).flatten(0, 1)


def _tiles(rows: Tensor) -> Tensor:
    """[n, tile, …], of which n may change without another compilation."""
    tiles = rows.view(-1, tile, *rows.shape[1:])
    torch._dynamo.maybe_mark_dynamic(tiles, 0)
    return tiles


def _fuse(drafter: Drafter, features: Tensor) -> Tensor:
    return drafter.fuse(features)


def _run(layer: Layer, x: Tensor, context: Tensor, tables: tuple[Tensor, ...], view: View) -> Tensor:
    if _on_gpu(x) and not torch.compiler.is_compiling():
        _refuse(layer, x, context)
    context_cos, context_sin, block_cos, block_sin = (table.flatten(0, 1) for table in tables)
    rotations = (context_cos, context_sin), (block_cos, block_sin)
    out: Tensor = layer(x.flatten(0, 1), context.flatten(0, 1), rotations, view)
    return out.view(-1, tile, *out.shape[1:])


def _on_gpu(x: Tensor) -> bool:
    return x.is_cuda


def _refuse(layer: Layer, x: Tensor, context: Tensor) -> None:
    """The compiler failed, as its warning has said: as they stand, layers would keep every score."""
    queries, keys = x.shape[0] * tile, (x.shape[0] + context.shape[0]) * tile
    heads = layer.self_attn.q_proj.out_features // layer.self_attn.q_norm.weight.numel()
    scores_gb = heads * queries * keys * 4 / 1e9
    raise DFlashError(
        "the drafter's attention could not be compiled, and uncompiled it fills the memory with scores",
        where="drafter.attention",
        found=f"{queries} queries and {keys} keys: {scores_gb:.3g} GB a layer",
        remedy="set drafter.attention=sdpa, or cure what the compiler's warning names",
    )


def _close(norm: RMSNorm, x: Tensor) -> Tensor:
    out: Tensor = norm(x)
    return out
