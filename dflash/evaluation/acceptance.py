"""How many drafted tokens a target accepts at temperature 0, from one pass of it over a finished text.

What speculative decoding writes at temperature 0 is the target's own greedy text. So nothing is decoded here:
from the states of that text the drafter drafts at every place of an answer at once, and the blocks that
decoding would have made are then walked on the CPU. That takes no cache and no rollback, so any target will
do. Of a text that the target did not write it gives the lengths for a target that would have written it.

An acceptance length counts the tokens that a block brings: the accepted drafts and the target's own token.
Knows nothing of where texts come from.

Shapes: n tokens of a text, F taps, H hidden width, V vocabulary, b block size, A anchors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from dflash.attention import SdpaView, upload
from dflash.compiling import working
from dflash.drafter import Drafter, PlainRunner

Counts = NDArray[np.int64]

blocks_at_once = 64  # whose logits exist at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A run of tokens of a text that the target wrote. Its first is known before anything is drafted."""

    start: int  # place of its first token; something must stand before it
    end: int  # one past its last
    limit: int | None = None  # one past the last place it might have filled, where blocks end; None: far away


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerAcceptance:
    """What a drafter would have brought to one answer."""

    accepted: Counts  # [end - start - 1] right drafts in a row, were a block to start at that place
    lengths: tuple[int, ...]  # acceptance lengths of the blocks of decoding; their sum is end - start - 1
    offered: Counts  # [end - start - 1] drafts of such a block for which the answer has a token


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotAcceptance:
    """How often the draft in one slot was accepted, which takes that all before it were."""

    slot: int  # 1 to b - 1
    blocks: int  # of decoding, with such a draft and an answer that goes on so far
    accepted: int
    anywhere: int  # the same of blocks from every place of the answers
    anywhere_accepted: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """The figures of several answers. None where no answer has a second token."""

    answers: int  # with at least one block
    blocks: int
    tokens: int  # that those blocks brought
    pooled: float | None  # tokens ÷ blocks
    mean_of_means: float | None  # the mean over answers of their tokens ÷ blocks
    slots: tuple[SlotAcceptance, ...]

    def to_json(self) -> dict[str, Any]:
        """For JSON."""
        slots = [{name: getattr(slot, name) for name in slot.__slots__} for slot in self.slots]
        names = ("answers", "blocks", "tokens", "pooled", "mean_of_means")
        return {**{name: getattr(self, name) for name in names}, "slots": slots}


def measure_text(
    drafter: Drafter,
    embedding: Tensor,
    head: Tensor,
    *,
    taps: Tensor,
    ids: Tensor,
    answers: Sequence[Answer],
    at_once: int = blocks_at_once,
) -> tuple[AnswerAcceptance, ...]:
    """For each of the answers of one text what the drafter would have brought to it.

    Args:
        drafter: on the device of `taps`; it runs uncompiled, by SDPA.
        embedding: [V, H] of the target, there, in the drafter's dtype.
        head: [V, H] likewise.
        taps: [n, F*H] the target's states, ascending layers; those behind the last anchor may be missing.
        ids: [n] int64 on the CPU.
        answers: one behind the other.
        at_once: blocks whose logits exist at a time.
    """
    blocks = _Blocks.of(answers, drafter.spec.block_size)
    with torch.no_grad(), working():
        parts = [_count_accepted(drafter, embedding, head, taps, ids, part) for part in blocks.split(at_once)]
    accepted = torch.cat([torch.empty(0, dtype=torch.int64), *parts]).numpy()
    offered = (torch.minimum(blocks.sizes, blocks.ends - blocks.anchors) - 1).numpy()
    edges = np.cumsum([0, *(answer.end - 1 - answer.start for answer in answers)])
    return tuple(
        AnswerAcceptance(accepted=accepted[a:b], lengths=walk(accepted[a:b]), offered=offered[a:b])
        for a, b in pairwise(edges)
    )


@dataclass(frozen=True, slots=True)
class _Blocks:
    """Blocks from every place of some answers that has a token behind it. All on the CPU."""

    anchors: Tensor  # [A] int64, ascending
    sizes: Tensor  # [A] int64, slots that the block has
    ends: Tensor  # [A] int64, where its answer ends

    @classmethod
    def of(cls, answers: Sequence[Answer], block_size: int) -> _Blocks:
        columns = [torch.empty(3, 0, dtype=torch.int64)]
        for answer in answers:
            anchors = torch.arange(answer.start, answer.end - 1)
            limit = answer.end - 1 + block_size if answer.limit is None else answer.limit
            sizes = (limit - anchors).clamp(max=block_size)
            columns.append(torch.stack([anchors, sizes, torch.full_like(anchors, answer.end)]))
        blocks = cls(*torch.cat(columns, dim=1))
        backwards = bool((blocks.anchors.diff() <= 0).any())
        if backwards or any(a.start < 1 or a.end > (a.limit or a.end) for a in answers):
            raise ValueError("answers have a prompt, stand one behind the other and end within their limit")
        return blocks

    def split(self, most: int) -> Iterator[_Blocks]:
        """The same in parts of at most so many."""
        for first in range(0, len(self.anchors), most):
            part = slice(first, first + most)
            yield _Blocks(self.anchors[part], self.sizes[part], self.ends[part])


def _count_accepted(
    drafter: Drafter, embedding: Tensor, head: Tensor, taps: Tensor, ids: Tensor, blocks: _Blocks
) -> Tensor:
    """Right drafts in a row of each block: [A] int64 on the CPU."""
    spec, device, anchors = drafter.spec, taps.device, blocks.anchors
    count, b = len(anchors), spec.block_size
    context = int(anchors[-1])  # no block sees what lies behind it
    block_ids = torch.full((count, b), spec.mask_token_id)
    block_ids[:, 0] = ids[anchors]
    places = anchors[:, None] + torch.arange(b)
    hidden = drafter(
        taps[:context].to(drafter.dtype),
        torch.arange(context, device=device),
        functional.embedding(upload(block_ids.flatten(), device), embedding),
        upload(places.flatten(), device),
        SdpaView.over(anchors, [count], (context,), b, spec, device, sizes=blocks.sizes),
        PlainRunner(),
    )
    drafts = functional.linear(hidden.view(count, b, -1)[:, 1:], head).argmax(-1).cpu()
    there = places[:, 1:] < blocks.ends[:, None]
    right = there & (drafts == ids[places[:, 1:].clamp(max=len(ids) - 1)])
    return right.cumprod(1).sum(1)


def walk(accepted: Counts) -> tuple[int, ...]:
    """Acceptance lengths of the blocks that decoding makes, by what is accepted at each place [n - 1].

    A block brings its accepted drafts and one token of the target, and no more than the answer has left.
    """
    lengths, place = list[int](), 0
    while place < len(accepted):
        lengths.append(min(int(accepted[place]) + 1, len(accepted) - place))
        place += lengths[-1]
    return tuple(lengths)


def summarize(measured: Sequence[AnswerAcceptance], block_size: int) -> Acceptance:
    """The figures of these answers together, of a drafter with blocks of that size."""
    told = [one for one in measured if one.lengths]
    blocks, tokens = sum(len(one.lengths) for one in told), sum(sum(one.lengths) for one in told)
    return Acceptance(
        answers=len(told),
        blocks=blocks,
        tokens=tokens,
        pooled=tokens / blocks if told else None,
        mean_of_means=float(np.mean([np.mean(one.lengths) for one in told])) if told else None,
        slots=_by_slot(told, block_size),
    )


def _by_slot(measured: Sequence[AnswerAcceptance], block_size: int) -> tuple[SlotAcceptance, ...]:
    empty = np.empty(0, np.int64)
    starts = [np.cumsum((0, *one.lengths[:-1])) for one in measured]
    walked = [(one.accepted[at], one.offered[at]) for one, at in zip(measured, starts, strict=True)]
    accepted, offered = (np.concatenate([empty, *parts]) for parts in _columns(walked))
    every = [(one.accepted, one.offered) for one in measured]
    accepted_anywhere, offered_anywhere = (np.concatenate([empty, *parts]) for parts in _columns(every))
    return tuple(
        SlotAcceptance(
            slot=slot,
            blocks=int((offered >= slot).sum()),
            accepted=int((accepted >= slot).sum()),
            anywhere=int((offered_anywhere >= slot).sum()),
            anywhere_accepted=int((accepted_anywhere >= slot).sum()),
        )
        for slot in range(1, block_size)
    )


def _columns(pairs: Sequence[tuple[Counts, Counts]]) -> tuple[list[Counts], list[Counts]]:
    return [a for a, _ in pairs], [b for _, b in pairs]


def answers_in(loss_mask: NDArray[np.bool_]) -> tuple[Answer, ...]:
    """The answers of a document by its loss mask [n]: supervised runs with something before them."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], loss_mask, [False]]).astype(np.int8)))
    runs = zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
    return tuple(Answer(start=max(start, 1), end=end) for start, end in runs if end > max(start, 1))
