"""What a window came to: sums on a drafter's device while it trains, host numbers once its step is made.

A row of sums is float32 [4 + 2b] for blocks of b slots: the loss numerator, rows of target states that are
all zero, rows that are not finite, rows in all, then correct and counted slots by their place in the block.
Rows of replicas and batches add up. Knows nothing of steps or of who waits for them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dflash.objective import ObjectiveTerms

_fixed = 4  # sums before those by slot


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowFigures:
    """What a window came to, as host numbers."""

    loss: float  # numerator / denominator over the whole window
    slot_correct: tuple[int, ...]  # by slot of the block, [b]: those whose argmax is the label
    slot_counted: tuple[int, ...]  # [b] those that count; slot 0 never does
    grad_norm: float  # before clipping
    lr: float
    states_absent: int = 0  # rows of target states that were all zero
    states: int = 0  # rows in all

    @property
    def accuracy(self) -> float | None:
        """Correct argmax over counted slots, unweighted; None where none counted."""
        counted = sum(self.slot_counted)
        return sum(self.slot_correct) / counted if counted else None

    @property
    def slot_accuracy(self) -> tuple[float | None, ...]:
        """The same for each slot that is predicted, 1 to b-1."""
        return slot_shares(self.slot_correct, self.slot_counted)


def slot_shares(correct: tuple[int, ...], counted: tuple[int, ...]) -> tuple[float | None, ...]:
    """Correct of counted for the slots 1 to b-1, None where a slot never counted."""
    pairs = zip(correct[1:], counted[1:], strict=True)
    return tuple(right / count if count else None for right, count in pairs)


def gather_sums(terms: ObjectiveTerms, taps: Tensor) -> Tensor:
    """The row of one batch that was trained on `taps` [T, F*H]; detached, on their device.

    States are looked at row by row in one pass over them: a target's hidden states are never all zero, so
    such a row was not written, or not brought.
    """
    largest = torch.linalg.vector_norm(taps.detach(), ord=float("inf"), dim=-1)
    absent, broken = (largest == 0).sum(), (~largest.isfinite()).sum()
    rows = torch.full((), float(len(taps)), device=taps.device)  # torch.tensor would wait for the device
    fixed = torch.stack([terms.numerator.detach().float(), absent.float(), broken.float(), rows])
    return torch.cat([fixed, terms.slot_correct, terms.slot_counted])


def teaches(sums: Tensor) -> Tensor:
    """Whether a step may be made of a window's row: scalar bool on its device; nothing is waited for."""
    _, absent, _, rows = sums[:_fixed].unbind()
    counted = sums[_fixed:].view(2, -1)[1].sum()
    return sums.isfinite().all() & (absent < rows) & (counted > 0)


@dataclass(frozen=True, slots=True)
class WindowSums:
    """A row of sums on the host."""

    numerator: float
    absent: int
    broken: int
    states: int
    slot_correct: tuple[int, ...]
    slot_counted: tuple[int, ...]

    @classmethod
    def of(cls, values: list[float]) -> WindowSums:
        """From the numbers of a row."""
        numerator, *counts = values
        absent, broken, states, *by_slot = (int(count) for count in counts)
        half = len(by_slot) // 2
        return cls(numerator, absent, broken, states, tuple(by_slot[:half]), tuple(by_slot[half:]))

    def trouble(self) -> tuple[str, str] | None:
        """What kept the window from teaching anything, and what was found; None: nothing in its row."""
        if self.absent == self.states:
            return (
                "the target gave no states: nothing can be learned from this window",
                f"0 of {self.states} tokens with states; those of {self.absent} are all zero",
            )
        if self.broken:
            return (
                "the target's states are not finite, training stops before the weights are harmed",
                f"states of {self.broken} of {self.states} tokens with infinities or NaN",
            )
        if not sum(self.slot_counted):
            return ("nothing is learned from this window: no slot of its blocks counts", "0 counted slots")
        return None
