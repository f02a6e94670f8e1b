"""What a drafter is trained to do: block inputs, and the weighted cross entropy of their outputs.

Numerators only: the denominator belongs to the window and is known before. Logits exist for a few blocks at a
time. Knows nothing of documents or of how anchors are chosen; the weights say which slots count.

Shapes: A blocks of b slots, Q = A*b, H hidden width, V vocabulary.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from dflash.batch import Batch
from dflash.compiling import compiled
from dflash.contract.config import TrainConfig


def loss_in_words(config: TrainConfig) -> str:
    """What the loss is and what it is divided by: losses of trainers that divide otherwise do not compare."""
    if config.objective.loss == "dpace":
        return f"cross entropy with D-PACE weights (alpha {config.objective.dpace_alpha:g}) ÷ documents"
    decay = f"exp(-(slot - 1) / {config.gamma:g})" if config.gamma else "1"
    return f"cross entropy with weights {decay} ÷ the sum of the weights"


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
        chunk_blocks: blocks whose logits exist at a time, 0: all.
    """
    alpha = dpace_alpha if loss == "dpace" else None
    numerator, slot_correct = _HeadLoss.apply(  # type: ignore[no-untyped-call]
        hidden, head, labels, weights, alpha, chunk_blocks or max(len(labels), 1)
    )
    return ObjectiveTerms(numerator, slot_correct, (weights > 0).sum(0).float())


class _HeadLoss(torch.autograd.Function):
    """Loss and, at once, its gradient by the hidden states: logits are neither kept nor made twice.

    The head is frozen, so nothing else has a gradient. Sums are float32, logits of the states' dtype.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        head: Tensor,
        labels: Tensor,
        weights: Tensor,
        alpha: float | None,
        chunk: int,
    ) -> tuple[Tensor, Tensor]:
        terms = _compiled_terms(hidden.device) if hidden.is_cuda else chunk_terms
        numerator = torch.zeros((), dtype=torch.float32, device=hidden.device)
        correct = torch.zeros(labels.shape[1], dtype=torch.float32, device=hidden.device)
        gradient = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        blocks = (*labels.shape, -1)
        # Of about one size: a compiler would make a case of its own of a last chunk with one block.
        count = max(1, -(-len(labels) // chunk))
        parts = zip(
            torch.tensor_split(hidden.view(blocks), count),
            torch.tensor_split(labels, count),
            torch.tensor_split(weights, count),
            strict=True,
        )
        slopes = None if gradient is None else torch.tensor_split(gradient.view(blocks), count)
        for index, (states, wanted, weight) in enumerate(parts):
            logits = functional.linear(states.flatten(0, 1), head)
            part, hits, slope = terms(logits, wanted, weight, alpha)
            numerator += part
            correct += hits
            if slopes is not None:
                torch.mm(slope, head, out=slopes[index].flatten(0, 1))
        ctx.gradient = gradient
        ctx.mark_non_differentiable(correct)
        return numerator, correct

    @staticmethod
    def backward(ctx: Any, by_numerator: Tensor, _by_correct: Tensor) -> tuple[Tensor | None, ...]:
        gradient, ctx.gradient = ctx.gradient, None
        return (gradient.mul_(by_numerator), *(None,) * 5)


def chunk_terms(
    logits: Tensor, labels: Tensor, weights: Tensor, dpace_alpha: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Numerator, correct slots [b] and the numerator's gradient by `logits` [n*b, V], of blocks [n, b]."""
    wide = logits.float()
    flat = labels.flatten()
    log_sum = wide.logsumexp(-1)
    entropy = (log_sum - wide.gather(-1, flat[:, None])[:, 0]).view(labels.shape)
    counted = weights > 0
    if dpace_alpha is not None:
        weights = weights * _dpace_weights(entropy, weights, dpace_alpha)
    hits = (wide.argmax(-1) == flat).view(labels.shape) & counted
    wanted = torch.arange(wide.shape[-1], device=wide.device) == flat[:, None]
    slope = ((wide - log_sum[:, None]).exp() - wanted.float()) * weights.flatten()[:, None]
    return (entropy * weights).sum(), hits.sum(0).float(), slope.to(logits.dtype)


@functools.cache
def _compiled_terms(_device: torch.device) -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
    """Few passes over the logits where there would be ten. One for each device: it is compiled for it."""
    run = compiled(chunk_terms, dynamic=None)

    def run_on_any_number(
        logits: Tensor, labels: Tensor, weights: Tensor, alpha: float | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        count = len(logits)
        if len(labels) == 1:  # a case of its own for a compiler: another one that does not count goes along
            logits, labels = logits.repeat(2, 1), labels.repeat(2, 1)
            weights = torch.cat([weights, torch.zeros_like(weights)])
        else:  # parts of larger tensors would be cases of their own, by where they begin
            labels, weights = labels.clone(), weights.clone()
        for rows in (logits, labels, weights):
            torch._dynamo.maybe_mark_dynamic(rows, 0)
        numerator, hits, slope = run(logits, labels, weights, alpha)
        return numerator, hits, slope[:count]

    return run_on_any_number


def _dpace_weights(entropy: Tensor, weights: Tensor, alpha: float) -> Tensor:
    """D-PACE: how much each slot [n, b] matters, given that all before it must be right."""
    passes = torch.where(weights > 0, (1 - alpha) * (-entropy).exp() + alpha, 1.0)
    reached = passes.cumprod(-1) * weights
    # Sums from each slot to the block's end, as a product: on CUDA cumsum has no deterministic kernel.
    return reached @ torch.ones(2 * (reached.shape[-1],), device=reached.device).tril()
