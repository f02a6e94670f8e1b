"""Which kernels a drafter runs with: FlexAttention in compiled layers on GPUs, SDPA elsewhere."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Protocol

import torch

from dflash.attention import LayerKinds, SdpaView, View
from dflash.batch import Batch
from dflash.compiled_drafter import CompiledRunner
from dflash.compiling import compiler_switch, is_worth_compiling
from dflash.contract.config import TrainConfig
from dflash.contract.errors import ConfigError
from dflash.contract.sections import DrafterConfig
from dflash.drafter import DrafterSpec, LayerRunner, PlainRunner
from dflash.flex_attention import FlexView, plan_tiles

ViewOf = Callable[[Batch, LayerKinds, torch.device], View]


class Width(Protocol):
    """What decides whether compiling pays: a drafter's width, which is its target's."""

    @property
    def hidden(self) -> int:
        """Values of a token's state."""


def takes_tiles(config: DrafterConfig, spec: Width, device_type: str) -> bool:
    """Whether attention is FlexAttention over tiles, inside compiled layers.

    Uncompiled it would keep the scores of every query and key, so `auto` wants a compiler switched on.
    """
    worth = is_worth_compiling(spec.hidden, device_type) and compiler_switch() is None
    return config.attention == "flex" or (config.attention == "auto" and worth)


def choose_kernels(config: TrainConfig, spec: DrafterSpec, place: torch.device) -> tuple[ViewOf, LayerRunner]:
    """How views are made on `place`, and what runs the layers. ConfigError: flex without a compiler."""
    checkpointing = config.drafter.checkpointing == "layers"
    if takes_tiles(config.drafter, spec, place.type):
        _check_compiler(config, spec)
        return FlexView.of, CompiledRunner(checkpointing=checkpointing)
    return SdpaView.of, PlainRunner(checkpointing=checkpointing)


def scores_bytes(config: TrainConfig, spec: DrafterSpec) -> int:
    """What uncompiled FlexAttention keeps of one layer, at least: float32 scores of one document a batch."""
    queries = config.objective.anchors_per_document * spec.block_size
    return spec.heads * queries * (config.pipeline.token_budget + queries) * 4


def _check_compiler(config: TrainConfig, spec: DrafterSpec) -> None:
    if (switch := compiler_switch()) is not None:
        raise ConfigError(
            "the drafter's attention would run uncompiled and fill the memory with scores",
            where="drafter.attention",
            found=f"flex with {switch}: at least {scores_bytes(config, spec) / 1e9:.3g} GB a layer for "
            f"pipeline.token_budget={config.pipeline.token_budget}",
            remedy=f"unset {switch.partition('=')[0]}, or set drafter.attention=sdpa",
        )


def plan_batch(batch: Batch, config: DrafterConfig, spec: DrafterSpec, device_type: str) -> Batch:
    """The batch with the tiles that its drafter will want, made ahead of it."""
    if not takes_tiles(config, spec, device_type):
        return batch
    return dataclasses.replace(batch, tiles=plan_tiles(batch, spec))
