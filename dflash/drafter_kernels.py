"""Which kernels a drafter runs with: FlexAttention in compiled layers on GPUs, SDPA elsewhere."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch

from dflash.attention import LayerKinds, SdpaView, View
from dflash.batch import Batch
from dflash.compiled_drafter import CompiledRunner
from dflash.contract.config import DrafterConfig
from dflash.drafter import DrafterSpec, LayerRunner, PlainRunner
from dflash.flex_attention import FlexView, plan_tiles

ViewOf = Callable[[Batch, LayerKinds, torch.device], View]


worth_compiling_hidden = 1024  # a narrower drafter trains in less time than its layers compile


def takes_tiles(config: DrafterConfig, spec: DrafterSpec, device_type: str) -> bool:
    """Whether attention is FlexAttention over tiles, inside compiled layers."""
    worth = device_type == "cuda" and spec.hidden >= worth_compiling_hidden
    return config.attention == "flex" or (config.attention == "auto" and worth)


def choose_kernels(
    config: DrafterConfig, spec: DrafterSpec, place: torch.device
) -> tuple[ViewOf, LayerRunner]:
    """How views are made on `place`, and what runs the layers."""
    checkpointing = config.checkpointing == "layers"
    if takes_tiles(config, spec, place.type):
        return FlexView.of, CompiledRunner(checkpointing=checkpointing)
    return SdpaView.of, PlainRunner(checkpointing=checkpointing)


def plan_batch(batch: Batch, config: DrafterConfig, spec: DrafterSpec, device_type: str) -> Batch:
    """The batch with the tiles that its drafter will want, made ahead of it."""
    if not takes_tiles(config, spec, device_type):
        return batch
    return dataclasses.replace(batch, tiles=plan_tiles(batch, spec))
