"""What a drafter is trained to do: block inputs, and the weighted cross entropy of their outputs.

Numerators only: the denominator belongs to the window and is known before. Logits exist for a few blocks at a
time. Knows nothing of documents or of how anchors are chosen; the weights say which slots count.

Shapes: A blocks of b slots, Q = A*b, H hidden width, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from dflash.batch import Batch


def block_inputs(batch: Batch, mask_token_id: int) -> tuple[Tensor, Tensor]:
    """Token ids and positions of all block slots, each [Q] int64: the anchor's own token, then masks."""
    block_size = batch.labels.shape[1]
    ids = torch.full_like(batch.labels, mask_token_id)
    ids[:, 0] = batch.input_ids[batch.anchors]
    positions = batch.positions[batch.anchors][:, None] + torch.arange(block_size)
    return ids.flatten(), positions.flatten()


@dataclass(frozen=True, slots=True)
class ObjectiveTerms:
    """Sums over a batch, float32, on its device. A slot counts where its weight is above zero."""

    numerator: Tensor  # scalar with gradient: sum of weight × cross entropy
    slot_correct: Tensor  # [b] slots whose argmax is the label
    slot_counted: Tensor  # [b]

    @property
    def correct(self) -> Tensor:
        return self.slot_correct.sum()

    @property
    def counted(self) -> Tensor:
        return self.slot_counted.sum()


def train_objective(
    hidden: Tensor,
    head: Tensor,
    labels: Tensor,
    weights: Tensor,
    *,
    loss: str,
    dpace_alpha: float,
    chunk_blocks: int,
) -> ObjectiveTerms:
    """Terms of the loss "dflash" or "dpace".

    Args:
        hidden: [Q, H] what the drafter gave.
        head: [V, H] frozen.
        labels: [A, b] int64.
        weights: [A, b] float; for "dflash" with its decay.
        loss: "dflash" or "dpace".
        dpace_alpha: smoothing, for "dpace" only.
        chunk_blocks: blocks whose logits exist at a time, 0: all. The backward computes them again.
    """
    blocks, block_size = labels.shape
    chunk = chunk_blocks or max(blocks, 1)
    alpha = dpace_alpha if loss == "dpace" else None
    numerator = torch.zeros((), dtype=torch.float32, device=hidden.device)
    correct = torch.zeros(block_size, dtype=torch.float32, device=hidden.device)
    by_block = hidden.view(blocks, block_size, -1)
    parts = zip(*(torch.split(x, chunk) for x in (by_block, labels, weights)), strict=True)
    for states, wanted, weight in parts:
        part, hits = checkpoint(
            _chunk_terms, states, head, wanted, weight, alpha, use_reentrant=False, preserve_rng_state=False
        )
        numerator = numerator + part
        correct = correct + hits
    return ObjectiveTerms(numerator, correct, (weights > 0).sum(0).float())


def _chunk_terms(
    states: Tensor, head: Tensor, labels: Tensor, weights: Tensor, dpace_alpha: float | None
) -> tuple[Tensor, Tensor]:
    """Numerator and [b] correct slots of some blocks. states [n, b, H]."""
    logits = functional.linear(states, head)
    entropy = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
    entropy = entropy.view(labels.shape).float()
    if dpace_alpha is not None:
        weights = weights * _dpace_weights(entropy.detach(), weights, dpace_alpha)
    numerator = (entropy * weights).sum()
    hits = (logits.detach().argmax(-1) == labels) & (weights > 0)
    return numerator, hits.sum(0).float()


def _dpace_weights(entropy: Tensor, weights: Tensor, alpha: float) -> Tensor:
    """D-PACE: how much each slot [n, b] matters, given that all before it must be right."""
    passes = torch.where(weights > 0, (1 - alpha) * (-entropy).exp() + alpha, 1.0)
    reached = passes.cumprod(-1) * weights
    # Sums from each slot to the block's end, as a product: on CUDA cumsum has no deterministic kernel.
    return reached @ torch.ones(2 * (reached.shape[-1],), device=reached.device).tril()
