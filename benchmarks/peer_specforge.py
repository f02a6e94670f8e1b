"""SpecForge's DFlash drafter step as a contender: its own model, loss and optimizer from its published wheel.

Its strongest setting: FlexAttention, the head in chunks of 128 blocks, Liger's norms and MLP. It gets the
case's anchors instead of drawing its own, which saves it a little time. Knows nothing of how it is timed.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.drafter_case import Case, block_size, total_steps

chunk_blocks = 128


def open_site(site: Path) -> None:
    """Let packages be imported from `site`, a folder of unpacked wheels, after everything installed."""
    sys.path.append(str(site))


class SpecForgeStep:
    """A drafter of SpecForge with the case's weights. See `contest.Contender`."""

    name = "SpecForge"

    def __init__(self, case: Case, *, chunk_blocks: int = chunk_blocks, liger: bool = True) -> None:
        attention = "flex_attention" if case.device.torch_device.type == "cuda" else "sdpa"
        self.setting = {"attention": attention, "chunk_blocks": chunk_blocks, "liger": liger}
        draft = _build_draft(case, attention, liger)
        draft.load_state_dict(case.weights, strict=True)
        self._model = _build_model(case, draft, attention, chunk_blocks)
        self._optimizer = _build_optimizer(draft, case)
        self._draft = draft
        rows = (case.shape.documents, case.shape.length)
        place = case.device.torch_device
        self._ids = case.batch.input_ids.view(rows).to(place)
        self._taps = case.taps.view(*rows, -1)
        self._loss_mask = torch.ones(rows, device=place)
        self._loss_mask[:, -block_size:] = 0
        self._loss: Tensor | None = None

    def feed(self, ids: Tensor, taps: Tensor) -> None:
        """What the next steps train on: [rows, width] and [rows, width, F*H], on the device."""
        self._ids, self._taps = ids, taps

    def train(self) -> None:
        """Forward, loss and backward."""
        loss, _accuracy, _metrics = self._model(
            input_ids=self._ids, hidden_states=self._taps, loss_mask=self._loss_mask
        )
        loss.backward()
        self._loss = loss.detach()

    def complete(self) -> None:
        """Clip and step."""
        self._optimizer.step()

    def take_gradients(self) -> tuple[float, dict[str, Tensor]]:
        """Loss of the last `train` and its gradients."""
        assert self._loss is not None
        gradients = {name: p.grad.float() for name, p in self._draft.named_parameters() if p.grad is not None}
        self._draft.zero_grad()
        return float(self._loss), gradients


def qwen3_config(case: Case) -> Any:
    """The transformers configuration of the drafter's layers."""
    from transformers import Qwen3Config

    spec = case.spec
    return Qwen3Config(
        hidden_size=spec.hidden,
        num_hidden_layers=spec.layers,
        num_attention_heads=spec.heads,
        num_key_value_heads=spec.kv_heads,
        head_dim=spec.head_dim,
        intermediate_size=spec.intermediate,
        vocab_size=spec.vocab,
        max_position_embeddings=spec.max_positions,
        rms_norm_eps=spec.rms_eps,
        tie_word_embeddings=False,
        layer_types=list(spec.layer_types),
        rope_parameters={"rope_type": "default", "rope_theta": spec.rope_theta},
    )


def _build_draft(case: Case, attention: str, liger: bool) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns of kernels for models that are not built here
        from specforge.modeling.draft.dflash import DFlashDraftModel
        from specforge.modeling.draft.dflash_kernels import load_liger_dflash_kernels

    config = qwen3_config(case)
    config._attn_implementation = attention
    config.num_target_layers = case.target.layers
    config.block_size = case.spec.block_size
    config.dflash_config = {
        "mask_token_id": case.spec.mask_token_id,
        "target_layer_ids": list(case.spec.taps),
    }
    kernels = load_liger_dflash_kernels() if liger else None
    place = case.device.torch_device
    return on_device(lambda: DFlashDraftModel(config, dflash_kernels=kernels), place, case.dtype).train()


def on_device(build: Callable[[], Any], place: torch.device, dtype: torch.dtype) -> Any:
    """What `build` makes, with its parameters made on `place` in `dtype`."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with place:
            return build().to(place)
    finally:
        torch.set_default_dtype(before)


def frozen_linear(weight: Tensor) -> nn.Linear:
    """A head around `weight` [V, H], which is not copied."""
    with torch.device("meta"):
        layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    layer.weight = nn.Parameter(weight, requires_grad=False)
    return layer


def _build_model(case: Case, draft: Any, attention: str, chunk_blocks: int) -> Any:
    from specforge.algorithms.common.dflash_family_model import OnlineDFlashModel

    model = OnlineDFlashModel(
        draft,
        frozen_linear(case.head),
        nn.Embedding.from_pretrained(case.embedding, freeze=True),
        mask_token_id=case.spec.mask_token_id,
        block_size=case.spec.block_size,
        attention_backend=attention,
        num_anchors=case.shape.anchors,
        loss_decay_gamma=case.config.gamma,
        objective_chunk_blocks=chunk_blocks,
    )
    positions = case.batch.positions[case.batch.anchors].to(case.device.torch_device)
    anchors = positions.view(case.shape.documents, -1)
    keep = torch.ones_like(anchors, dtype=torch.bool)
    model._sample_anchor_positions = lambda *_arguments, **_named: (anchors, keep)
    return model


def _build_optimizer(draft: Any, case: Case) -> Any:
    from specforge.optimizer import BF16Optimizer

    ours = case.config.optimizer
    return BF16Optimizer(
        draft,
        lr=ours.lr,
        weight_decay=ours.weight_decay,
        max_grad_norm=ours.clip_norm,
        total_steps=total_steps,
        warmup_ratio=ours.warmup_ratio,
    )
