"""Documents of one window into batches under the token budget, and the rows that a batch is given as.

Packing decides the cost of a step, never its result. Deterministic. Knows nothing of what documents hold.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from dflash.batch import Layout

Lengths = NDArray[np.int64]
Members = NDArray[np.int64]  # places in `lengths`, ascending
LayoutKind = Literal["flat", "packed", "padded"]


def pack(lengths: Lengths, budget: int, kind: LayoutKind) -> list[Members]:
    """Every document in exactly one batch of at most `budget` tokens.

    Padded rows count with their padding: rows × width. No length may be more than `budget`.
    """
    if len(lengths) and int(lengths.max()) > budget:
        raise ValueError(f"a document of {int(lengths.max())} tokens is over the budget of {budget}")
    batches = _group_alike(lengths, budget) if kind == "padded" else _spread(lengths, budget)
    return [np.sort(np.asarray(batch, np.int64)) for batch in batches]


def _longest_first(lengths: Lengths) -> list[int]:
    order: list[int] = np.argsort(-lengths, kind="stable").tolist()
    return order


def _spread(lengths: Lengths, budget: int) -> list[list[int]]:
    """As few batches as will do, all about equally full and each with long and short documents.

    The longest document left goes to the emptiest batch. Batches of like cost keep all drafters equally busy.
    """
    order, sizes = _longest_first(lengths), lengths.tolist()
    tight = _fill_bins(order, sizes, budget)
    fewest = -(-sum(sizes) // budget)
    for count in (*range(fewest, min(fewest + 3, len(tight))), len(tight)):
        batches = _spread_over(count, order, sizes, budget)
        if batches is not None:
            return batches
    return tight


def _spread_over(count: int, order: list[int], sizes: list[int], budget: int) -> list[list[int]] | None:
    """`order` over `count` batches, None when the budget does not allow it this way."""
    batches: list[list[int]] = [[] for _ in range(count)]
    loads = [(0, i) for i in range(count)]
    for document in order:
        load, i = loads[0]
        if load + sizes[document] > budget:
            return None
        heapq.heapreplace(loads, (load + sizes[document], i))
        batches[i].append(document)
    return batches


def _fill_bins(order: list[int], sizes: list[int], capacity: int) -> list[list[int]]:
    """Best fit: each document, longest first, goes where it leaves the least room."""
    bins: list[list[int]] = []
    rooms: list[tuple[int, int]] = []  # (room, bin), ascending
    for document in order:
        at = bisect_left(rooms, (sizes[document], -1))
        if at < len(rooms):
            room, i = rooms.pop(at)
        else:
            room, i = capacity, len(bins)
            bins.append([])
        bins[i].append(document)
        insort(rooms, (room - sizes[document], i))
    return bins


def _group_alike(lengths: Lengths, budget: int) -> list[list[int]]:
    """One row a document: like lengths share a batch, so that little is padding."""
    order, sizes = _longest_first(lengths), lengths.tolist()
    batches = []
    first = 0
    while first < len(order):
        rows = budget // sizes[order[first]]
        batches.append(order[first : first + rows])
        first += rows
    return batches


def lay_out(lengths: Lengths, kind: LayoutKind) -> Layout:
    """The rows of a batch of documents, which lie back to back in the order of `lengths`.

    `flat` is one row of them all, without padding. Other rows are as wide as the longest document: `packed`
    ones are filled with further documents, `padded` ones hold one each.
    """
    if kind == "flat":
        tokens = int(lengths.sum())
        return Layout(rows=1, width=tokens, slots=torch.arange(tokens), packed=True)
    width = int(lengths.max())
    starts = np.arange(len(lengths), dtype=np.int64) * width
    rows = len(lengths)
    if kind == "packed":
        bins = _fill_bins(_longest_first(lengths), lengths.tolist(), width)
        rows = len(bins)
        for row, members in enumerate(bins):
            sizes = lengths[members]
            starts[members] = row * width + np.cumsum(sizes) - sizes
    slots = np.repeat(starts, lengths) + positions_within(lengths)
    return Layout(rows=rows, width=width, slots=torch.from_numpy(slots), packed=kind == "packed")


def positions_within(lengths: Lengths) -> NDArray[np.int64]:
    """0, 1, … in each of the documents that lie back to back: [T]."""
    starts = np.cumsum(lengths) - lengths
    return np.arange(int(lengths.sum()), dtype=np.int64) - np.repeat(starts, lengths)
