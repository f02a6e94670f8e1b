"""What a pipeline's parts cost: the numbers a forecast is made of, however they were come by.

Knows nothing of queues, nor of how the numbers were fitted.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Final

import numpy as np

from profiler.forecast.setting import Setting

Windows = tuple[tuple[float, ...], ...]  # tokens of each batch of each window
hops: Final = {  # copies that a batch's states make on each path
    "pageable": ("pageable down", "pageable up"),
    "pinned": ("pinned down", "pinned up"),
    "peer": ("peer",),
}

# Bytes a second of pageable copies of a GPU where nobody measured them, a fresh buffer each: runs of H200s
# had 1.2 and 1.7e9 down, 3.7 and 6.3e9 up. Other hosts may be twice as fast, or half.
usual_pageable: Final = {"pageable down": 1.5e9, "pageable up": 5e9}
pageable_deviation: Final = 0.5  # of their logarithm
keeps_driver: Final = 0.5  # of a pageable copy's time: roles on that GPU enqueue nothing; H200: 0.4 to 0.6


@dataclass(frozen=True, slots=True)
class Line:
    """Seconds as an affine function of an amount: `fixed_s` + `slope_s` × amount."""

    fixed_s: float = 0.0
    slope_s: float = 0.0

    def at(self, amount: float) -> float:
        """Seconds for that amount."""
        return self.fixed_s + self.slope_s * amount

    def times(self, factor: float) -> Line:
        """The same, `factor` times as long."""
        return Line(self.fixed_s * factor, self.slope_s * factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineModel:
    """Seconds of work with nobody beside, by stage; and what the stages do to each other."""

    pack: Line  # of tokens of a batch
    forward: Line
    backward: Line
    target_extra: Line = Line()  # besides, on the stage's own thread, of tokens of a batch
    drafter_extra: Line = Line()
    step_s: float = 0.0  # a window: the optimizer
    merge_s: float = 0.0  # a window and further drafter: its gradients
    noise: Mapping[str, float] = field(default_factory=dict)  # by stage: relative deviation of a batch's work
    target_factors: tuple[float, ...] = ()  # how much longer each target takes; 1 for those beyond
    links: Mapping[str, Line] = field(default_factory=dict)  # by hop: of bytes
    # By hop: how much longer copies of each target take than usual.
    copy_factors: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    taken_hops: frozenset[str] = frozenset()  # of `links`: nobody measured them, so they are as usual
    token_bytes: float = 0.0  # of hidden states
    away_share: float | None = None  # of a shared queue's batches, taken by another drafter; None: not seen
    cores: float | None = None  # that logical devices compute on; None: devices of their own
    # How much more a device does with both roles at work on it at once; None: they take turns.
    sharing_gain: float | None = None
    crowding: float = 0.0  # how much longer work takes for each other stage at work, on logical devices
    windows: Windows = ((1.0,),)  # as they were
    documents: tuple[float, ...] = ()  # lengths of some of them; empty: unknown, as fine as sand

    def target_factor(self, index: int) -> float:
        """How much longer that target takes than the usual one."""
        return self.target_factors[index] if index < len(self.target_factors) else 1.0

    def copy_factor(self, hop: str, index: int) -> float:
        """How much longer that target's copies take; pageable and pinned buffers lie in the same place."""
        other = {"pageable down": "pinned down", "pinned down": "pageable down"}.get(hop, hop)
        factors = self.copy_factors.get(hop) or self.copy_factors.get(other) or ()
        return factors[index] if index < len(factors) else 1.0

    def window_s(self, drafters: int) -> float:
        """Sum and optimizer step of a window."""
        return self.step_s + self.merge_s * (drafters - 1)

    def hop_s(self, hop: str, tokens: float) -> float:
        """One copy of a batch's states, nothing where its speed is unknown. A move unseen is a peer copy."""
        if hop == "move" and hop not in self.links:
            hop = "peer"
        return self.links[hop].at(tokens * self.token_bytes) if hop in self.links else 0.0

    def way(self, setting: Setting) -> str:
        """The path in force: of `auto`, the faster one."""
        if setting.path != "auto":
            return setting.path
        many = 1e6
        both = {"peer", *hops["pinned"]} <= set(self.links)
        slow = both and self.links["peer"].at(many) > sum(self.links[hop].at(many) for hop in hops["pinned"])
        return "pinned" if slow else "peer"

    def slowdown_on_one(self, at_work: Sequence[str]) -> float:
        """How much longer the work of those stages takes while they are at it at once on one device."""
        gain = self.sharing_gain if self.sharing_gain and len(set(at_work)) > 1 else 1.0
        return len(at_work) / gain

    def slowdown(self, running: float) -> float:
        """How much longer work takes while that many stages work at once."""
        shared = max(running / self.cores, 1.0) if self.cores else 1.0
        return shared * (1.0 + self.crowding * max(running - 1.0, 0.0))


def lay_windows(model: PipelineModel, setting: Setting, now: Setting) -> Windows:
    """The windows that the setting would make of the same documents; `now`: the one they were seen in.

    As they were where budget and window are; else as few batches as the budget allows, about equally full: of
    documents like those known, else of any size.
    """
    same_size = setting.window_tokens == now.window_tokens
    if same_size and setting.token_budget == now.token_budget:
        return model.windows
    factor = 1.0 if same_size else (setting.window_tokens or 1) / (now.window_tokens or 1)
    # Where the budget is as it was, batches are as full as they were.
    largest = max(tokens for window in model.windows for tokens in window)
    budget = largest if setting.token_budget == now.token_budget else setting.token_budget or largest
    sizes = [factor * sum(window) for window in model.windows]
    if not model.documents:
        return tuple(_even(size, budget) for size in sizes)
    draw = np.random.default_rng(0)
    return tuple(_packed(_documents(size, model.documents, draw), budget) for size in sizes)


def _even(size: float, budget: float) -> tuple[float, ...]:
    count = max(ceil(size / budget), 1)
    return (size / count,) * count


def _documents(size: float, known: tuple[float, ...], draw: np.random.Generator) -> list[float]:
    """Documents like those known that come to `size` tokens."""
    count = max(round(size * len(known) / sum(known)), 1)
    lengths = draw.choice(known, count)
    return sorted((lengths * (size / lengths.sum())).tolist(), reverse=True)


def _packed(longest_first: list[float], budget: float) -> tuple[float, ...]:
    """As few batches as will do: the longest document left goes to the emptiest."""
    room = max(budget, longest_first[0])
    count = ceil(sum(longest_first) / room)
    while True:
        loads = [0.0] * count
        for length in longest_first:
            heapq.heapreplace(loads, loads[0] + length)
        if max(loads) <= room * (1 + 1e-9):
            return tuple(loads)
        count += 1
