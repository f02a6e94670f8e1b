"""Autoregressive decoding of many prompts side by side: greedy, or drawn with random numbers of their own.

Rows are padded on the left and masked; rows that have ended leave the batch once they are half of it. Each
row brings its own uniform numbers, so what it draws does not depend on its neighbours. What remains of the
batch is the rounding of kernels, which may choose otherwise among nearly equal tokens. The `generate` of
transformers has neither: it draws for the batch as a whole and keeps ended rows to the end.

Shapes: B rows, W width of the widest prompt, N new tokens at most, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

looks_every = 8  # steps between looks at which rows have ended; each look waits for the device

# (ids [B, W], mask [B, W], positions [B, W], cache) -> logits of the last position, [B, V]
Model = Callable[[Tensor, Tensor, Tensor, Any], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How the next token is chosen."""

    temperature: float = 0.0  # 0: the likeliest
    top_p: float = 1.0

    def choose(self, logits: Tensor, uniforms: Tensor | None) -> Tensor:
        """Of logits [B, V] and, unless greedy, uniform numbers [B] in [0, 1): [B] int64."""
        if self.temperature == 0 or uniforms is None:
            return logits.argmax(dim=-1)
        probabilities = torch.softmax(logits.float() / self.temperature, dim=-1)
        sorted_, order = probabilities.sort(dim=-1, descending=True, stable=True)
        reached = sorted_.cumsum(dim=-1)
        # The likeliest tokens whose predecessors do not come to top_p yet; always the first.
        kept = torch.where(reached - sorted_ < self.top_p, sorted_, torch.zeros_like(sorted_))
        reached = kept.cumsum(dim=-1)
        wanted = (uniforms * reached[:, -1]).unsqueeze(1)
        place = torch.searchsorted(reached, wanted, right=True).clamp(max=logits.shape[-1] - 1)
        # Rounding may lead past the last token that is kept.
        last = (kept > 0).sum(dim=-1, keepdim=True) - 1
        return order.gather(1, torch.minimum(place, last)).squeeze(1)


@dataclass(frozen=True, slots=True)
class Generated:
    """New tokens of one row, the end mark included if it wrote one."""

    ids: list[int]
    ended: bool


@torch.inference_mode()
def decode(
    model: Model,
    cache: Any,
    prompts: Sequence[NDArray[np.int32]],
    *,
    ends: frozenset[int],
    most: int,
    sampling: Sampling,
    uniforms: NDArray[np.float32] | None,
    device: torch.device,
    watch: Callable[[int, int], None] = lambda steps, rows: None,
) -> list[Generated]:
    """What follows each prompt, up to the first token of `ends` or `most` tokens.

    `cache`: an empty one of transformers. `uniforms` [B, N]: not for greedy decoding. `watch` is told now and
    then how many steps are done and how many rows go on.
    """
    ids, mask = (each.to(device) for each in _pad_left(prompts, most))
    rows, width = ids.shape
    lengths = mask[:, :width].sum(dim=1)
    drawn = None if uniforms is None else torch.from_numpy(uniforms).to(device)
    end_ids = torch.tensor(sorted(ends), device=device)
    written = torch.zeros(rows, most, dtype=torch.int64, device=device)
    active = torch.arange(rows, device=device)  # the row of the batch's every place
    ended = torch.zeros(rows, dtype=torch.bool, device=device)  # by place
    positions = (mask[:, :width].cumsum(dim=1) - 1).clamp(min=0)
    current = ids
    for step in range(most):
        logits = model(current, mask[:, : width + step], positions, cache)
        chosen = sampling.choose(logits, None if drawn is None else drawn[:, step])
        written[active, step] = chosen
        ended |= torch.isin(chosen, end_ids)
        current, positions = chosen.unsqueeze(1), (lengths + step).unsqueeze(1)
        if (step + 1) % looks_every == 0 and step + 1 < most:
            going = (~ended).nonzero().squeeze(1)
            watch(step + 1, len(going))
            if not len(going):
                break
            if 2 * len(going) <= len(active):
                cache.reorder_cache(going)  # of all methods the one that recurrent layers have too
                active, ended, lengths, mask = active[going], ended[going], lengths[going], mask[going]
                current, positions = current[going], positions[going]
                drawn = None if drawn is None else drawn[going]
    return [_until_end(row, ends) for row in written.tolist()]


def _pad_left(prompts: Sequence[NDArray[np.int32]], most: int) -> tuple[Tensor, Tensor]:
    """Ids [B, W], and a mask [B, W + N] of what is there: prompts end side by side, new tokens follow."""
    rows, width = len(prompts), max(len(prompt) for prompt in prompts)
    ids = torch.zeros(rows, width, dtype=torch.int64)
    mask = torch.zeros(rows, width + most, dtype=torch.int64)
    mask[:, width:] = 1
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = torch.from_numpy(prompt.astype(np.int64))
        mask[row, width - len(prompt) : width] = 1
    return ids, mask


def _until_end(row: list[int], ends: frozenset[int]) -> Generated:
    for place, token in enumerate(row):
        if token in ends:
            return Generated(row[: place + 1], ended=True)
    return Generated(row, ended=False)
