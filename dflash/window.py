"""Windows: which documents make one optimizer step, their batches, and the turns in which batches are sent.

The window is the sole owner of the training signal: order, anchors, labels, weights and the loss denominator
follow from the documents and the seed, before anything is packed. Knows nothing of devices.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

import numpy as np
import torch
from numpy.typing import NDArray

from dflash.anchors import draw_anchors, label_blocks
from dflash.batch import Batch, Layout, WindowInfo
from dflash.contract.config import TrainConfig
from dflash.contract.events import Probe
from dflash.data.documents import Documents
from dflash.packing import LayoutKind, Lengths, Members, lay_out, pack, positions_within
from dflash.random_keys import random_keys

Numbers = NDArray[np.int64]  # of documents in the data set


def plan_windows(lengths: Lengths, window_tokens: int, *, seed: int, epoch: int) -> list[Numbers]:
    """The documents of each window of an epoch, in the epoch's order.

    The order is a permutation that depends on seed and epoch alone. A window closes at the first document end
    at or past `window_tokens`; the last one takes what is left.
    """
    order = np.argsort(random_keys(len(lengths), seed=seed, purpose="order", epoch=epoch), kind="stable")
    ends = np.cumsum(lengths[order])
    windows, first, before = [], 0, 0
    while first < len(order):
        last = int(np.searchsorted(ends, before + window_tokens))
        windows.append(order[first : last + 1])
        first = last + 1
        before = int(ends[min(last, len(order) - 1)])
    return windows


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """The optimizer steps of a whole run, those before its data began included."""

    begins_at: int  # the step at which its data begins: 0, or later where other data were trained before
    by_epoch: tuple[int, ...]  # windows of each epoch, as far as `total_steps` needs them
    total_steps: int  # the windows of all epochs and what came before, at most `run.max_steps`

    @classmethod
    def of(cls, lengths: Lengths, config: TrainConfig, begins_at: int = 0) -> Course:
        """Of documents of these lengths."""
        steps, limit, by_epoch = begins_at, config.run.max_steps, []
        for epoch in range(config.run.epochs):
            by_epoch.append(len(_plan(lengths, config, epoch)))
            steps += by_epoch[-1]
            if limit and steps >= limit:
                steps = max(limit, begins_at)
                break
        return cls(begins_at=begins_at, by_epoch=tuple(by_epoch), total_steps=steps)

    def place(self, step: int) -> tuple[int, int]:
        """Epoch, and number of the window in it, of `step`; after the last: the next epoch's first."""
        left = step - self.begins_at
        for epoch, windows in enumerate(self.by_epoch):
            if left < windows:
                return epoch, left
            left -= windows
        return len(self.by_epoch), left


def steps_in_all(lengths: Lengths, config: TrainConfig) -> int:
    """Optimizer steps of a whole run: the windows of all epochs, at most `run.max_steps`."""
    return Course.of(lengths, config).total_steps


def _plan(lengths: Lengths, config: TrainConfig, epoch: int) -> list[Numbers]:
    return plan_windows(lengths, config.window.tokens, seed=config.data.seed, epoch=epoch)


def batches(
    documents: Documents,
    config: TrainConfig,
    *,
    layout: LayoutKind,
    start_step: int = 0,
    begins_at: int = 0,
) -> Iterator[Batch]:
    """All batches of the run from optimizer step `start_step` on, window after window. Ids count from 0.

    `begins_at`: the step that the first window of the documents is (see Course).
    """
    ids = count()
    step = begins_at
    for epoch in range(config.run.epochs):
        for members in _plan(documents.lengths, config, epoch):
            if config.run.max_steps and step >= config.run.max_steps:
                return
            if step >= start_step:
                yield from _Window(documents, config, members, step, epoch).batches(layout, ids)
            step += 1


@dataclass(slots=True)
class _Blocks:
    """The blocks of a window's documents, which lie back to back."""

    anchors: NDArray[np.int64]  # [A], places in the window's tokens
    labels: NDArray[np.int64]  # [A, b]
    weights: NDArray[np.float32]  # [A, b]
    counts: NDArray[np.int64]  # [D] anchors of each document


class _Window:
    """One optimizer step's documents with everything that is drawn for them."""

    def __init__(
        self, documents: Documents, config: TrainConfig, members: Numbers, step: int, epoch: int
    ) -> None:
        self._config, self._step, self._epoch = config, step, epoch
        self._members = members
        items = [documents.items[number] for number in members]
        self._lengths = documents.lengths[members]
        self._ids = np.concatenate([item.ids for item in items]).astype(np.int64)
        self._mask = np.concatenate([item.loss_mask for item in items])
        self._starts = np.cumsum(self._lengths) - self._lengths
        drawn = [
            draw_anchors(
                item.loss_mask,
                seed=config.data.seed,
                epoch=epoch,
                document=int(number),
                limit=config.objective.anchors_per_document,
            )
            for item, number in zip(items, members, strict=True)
        ]
        self._blocks = self._label(drawn)

    def _label(self, drawn: list[NDArray[np.int64]]) -> _Blocks:
        counts = np.array([len(anchors) for anchors in drawn], np.int64)
        anchors = np.concatenate(drawn) + np.repeat(self._starts, counts)
        gamma = self._config.gamma if self._config.objective.loss == "dflash" else None
        ends = np.repeat(self._starts + self._lengths, counts)
        block_size = self._config.drafter.block_size
        labels, weights = label_blocks(self._ids, self._mask, anchors, block_size, gamma, ends=ends)
        return _Blocks(anchors, labels, weights, counts)

    def batches(self, kind: LayoutKind, ids: Iterator[int]) -> Iterator[Batch]:
        """The window under the token budget."""
        groups = pack(self._lengths, self._config.pipeline.token_budget, kind)
        layouts = [lay_out(self._lengths[group], kind) for group in groups]
        info = self._describe(layouts)
        for group, layout in zip(groups, layouts, strict=True):
            yield self._make_batch(next(ids), info, group, layout)

    def _describe(self, layouts: list[Layout]) -> WindowInfo:
        return WindowInfo(
            step=self._step,
            epoch=self._epoch,
            batches=len(layouts),
            documents=len(self._members),
            tokens=len(self._ids),
            supervised_tokens=int(self._mask.sum()),
            processed_tokens=sum(layout.processed_tokens for layout in layouts),
            denominator=self._denominator(),
        )

    def _denominator(self) -> float:
        """What the loss of the window is divided by: see docs/data.md."""
        if self._config.objective.loss == "dpace":
            return float((self._blocks.counts > 0).sum())
        return float(self._blocks.weights.sum(dtype=np.float64))

    def _make_batch(self, number: int, info: WindowInfo, group: Members, layout: Layout) -> Batch:
        lengths, counts = self._lengths[group], self._blocks.counts[group]
        positions = positions_within(lengths)
        starts = np.cumsum(lengths) - lengths
        tokens = np.repeat(self._starts[group], lengths) + positions
        first_blocks = np.cumsum(self._blocks.counts) - self._blocks.counts
        blocks = np.repeat(first_blocks[group], counts) + positions_within(counts)
        anchors = self._blocks.anchors[blocks] + np.repeat(starts - self._starts[group], counts)
        return Batch(
            id=number,
            window=info,
            documents=tuple(self._members[group].tolist()),
            lengths=tuple(lengths.tolist()),
            input_ids=torch.from_numpy(self._ids[tokens]),
            positions=torch.from_numpy(positions),
            document_ids=torch.from_numpy(np.repeat(np.arange(len(group)), lengths)),
            anchors=torch.from_numpy(anchors),
            labels=torch.from_numpy(self._blocks.labels[blocks]),
            weights=torch.from_numpy(self._blocks.weights[blocks]),
            layout=layout,
        )


class WindowTurns:
    """Holds back the sending of a window's batches until every batch of all earlier windows was sent.

    Forward work is not held back. Shared by all targets; every batch of a window from `first_step` on must be
    sent by somebody, in any order within its window.
    """

    def __init__(self, first_step: int = 0) -> None:
        self._changed = threading.Condition()
        self._open_step = first_step  # all batches of earlier steps were sent
        self._sent: Counter[int] = Counter()  # batches sent of the steps not yet complete
        self._error: BaseException | None = None

    def wait(self, batch: Batch, probe: Probe) -> None:
        """Block until it is the turn of the batch's window: span window_turn. Raises the abort cause."""
        with probe.span("window_turn", batch=batch.id, window=batch.window.step), self._changed:
            while self._error is None and batch.window.step > self._open_step:
                self._changed.wait()
            if self._error is not None:
                raise self._error

    def sent(self, batch: Batch) -> None:
        """A batch was handed to the transport. The last one of a window opens the next."""
        step = batch.window.step
        with self._changed:
            self._sent[step] += 1
            if self._sent[step] == batch.window.batches:
                del self._sent[step]
                self._open_step = step + 1
                self._changed.notify_all()

    def abort(self, error: BaseException) -> None:
        """Wake all waiters; they and all later ones raise `error`."""
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()
