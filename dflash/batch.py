"""A Batch is whole documents of one window packed back to back; HiddenStates add the target's taps.

Shapes: T real tokens of the batch, D documents, A anchors, b block size, F taps, H hidden width.
Knows nothing of how documents are chosen or of who computes the states.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from dflash.devices import Moment
    from dflash.tiles import TileMask


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowInfo:
    """What every batch knows of its window."""

    step: int  # the optimizer step it makes, from 0
    epoch: int
    batches: int
    documents: int
    tokens: int
    supervised_tokens: int
    processed_tokens: int  # what the targets run: rows × width of its batches
    denominator: float  # the loss denominator of the whole window, > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where each packed token sits in the rows given to the target."""

    rows: int
    width: int
    slots: Tensor  # [T] int64: flat index row * width + column
    packed: bool  # several documents may share a row

    @property
    def flat(self) -> bool:
        """One row, filled by real tokens: nothing is padding."""
        return self.packed and self.rows == 1 and self.width == len(self.slots)

    @property
    def processed_tokens(self) -> int:
        return self.rows * self.width


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Everything a target and a drafter need of some documents. All tensors on the CPU."""

    id: int  # counts up over the run, in the order batches are made
    window: WindowInfo
    documents: tuple[int, ...]  # dataset indices, [D]
    lengths: tuple[int, ...]  # [D]
    input_ids: Tensor  # [T] int64
    positions: Tensor  # [T] int64, from 0 in each document
    document_ids: Tensor  # [T] int64, 0..D-1
    anchors: Tensor  # [A] int64, packed index of each block's slot 0, ascending
    labels: Tensor  # [A, b] int64
    weights: Tensor  # [A, b] float32: 0 where a slot does not count; decay included for loss "dflash"
    layout: Layout
    tiles: Mapping[str, TileMask] | None = None  # masks by layer type, where the drafter's kernel wants them

    kept: Tensor | None = None  # [K] int64, the tokens whose states are sent; None: all
    sent: Batch | None = None  # the batch of those alone, as the drafter sees it

    @property
    def tokens(self) -> int:
        return int(self.input_ids.numel())

    @property
    def for_drafter(self) -> Batch:
        """The batch to which the states belong that a drafter gets."""
        return self.sent or self


@dataclass(slots=True, kw_only=True)
class HiddenStates:
    """The taps of a batch, somewhere. Transports fill in where and when."""

    batch: Batch
    taps: Tensor  # [T, F*H] of `batch.for_drafter`, ascending layer order
    home: int = -1  # drafter whose device it was sent to; -1: not dispatched yet
    ready: Moment | None = None  # when `taps` may be read
    slot: object = field(default=None, repr=False)  # the transport's own bookkeeping

    @property
    def nbytes(self) -> int:
        return self.taps.numel() * self.taps.element_size()
