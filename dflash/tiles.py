"""Which tiles of queries and keys a drafter's attention must compute: the block-sparse mask as NumPy arrays.

Keys are laid out as [block slots ; context tokens], both padded to whole tiles, so that a block's own keys
have the numbers of its queries. Made on the CPU when a batch is packed. Knows nothing of kernels or devices.

Shapes: A blocks of b slots, Q = A*b block rows, T context rows, both padded here; n query tiles, m key tiles.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dflash.contract.activations import least_tiles, tile_rows

tile = tile_rows  # rows and columns; the memory plan counts by the same

Numbers = NDArray[np.int32]
Places = NDArray[np.int64]
AnyNumbers = NDArray[np.signedinteger[Any]]


class Ordered(NamedTuple):
    """For each row of a matrix of tiles how many are set, and their columns, those first."""

    counts: Numbers  # [rows]
    columns: Numbers  # [rows, columns]


@dataclass(frozen=True, slots=True)
class TileMask:
    """One layer type's mask: what each row of slots sees, and the tiles that follow from it."""

    first: Numbers  # [Q] first context key that a row sees, as a key number
    last: Numbers  # [Q] one past the last
    partial: Ordered  # by query tile: tiles in which some keys are seen
    whole: Ordered  # by query tile: tiles in which every row sees every key
    partial_by_key: Ordered  # the same by key tile
    whole_by_key: Ordered

    def arrays(self) -> tuple[Numbers, ...]:
        """Everything there is to upload."""
        ordered = (self.partial, self.whole, self.partial_by_key, self.whole_by_key)
        return (self.first, self.last, *(array for pair in ordered for array in pair))


def padded(rows: int) -> int:
    """Rows up to a whole tile, at least two: of one, a compiler would make a case of its own."""
    return max(least_tiles, -(-rows // tile)) * tile


def mask_tiles(anchors: Places, positions: Places, block_size: int, window: int | None) -> TileMask:
    """The mask of full layers, or of sliding ones that see less than `window` keys behind the query.

    anchors: [A] packed tokens of the blocks' first slots; positions: [T] of all tokens in their documents.
    """
    slots = np.arange(block_size)
    offset = padded(len(anchors) * block_size)  # number of the first context key
    position = positions[anchors][:, None] + slots
    start = anchors[:, None] - position + slots  # of the document, in packed tokens
    if window is not None:
        start = start + np.maximum(0, position - window + 1)
    last = np.broadcast_to(anchors[:, None], start.shape)
    first = np.minimum(start, last)
    rows = _pad_rows(first + offset, offset), _pad_rows(last + offset, offset)
    return _tiles(*rows, keys=offset + padded(len(positions)), block_size=block_size)


def _pad_rows(values: NDArray[np.int64], rows: int) -> Numbers:
    """[Q] int32; padding rows see no context."""
    out = np.zeros(rows, np.int32)
    out[: values.size] = values.ravel()
    return out


def _tiles(first: Numbers, last: Numbers, *, keys: int, block_size: int) -> TileMask:
    rows, columns = len(first) // tile, keys // tile
    row = np.arange(len(first)) // tile
    seen = last > first
    touched = _covered(row[seen], first[seen] // tile, -(-last[seen] // tile), rows, columns) > 0
    full_rows = _covered(row[seen], -(-first[seen] // tile), last[seen] // tile, rows, columns)
    whole = full_rows == tile
    own_first = np.arange(rows) * tile // block_size * block_size // tile
    own_last = -(-((np.arange(rows) + 1) * tile) // block_size) * block_size
    own_last = np.minimum(-(-own_last // tile), rows)
    touched |= _covered(np.arange(rows), own_first, own_last, rows, columns) > 0
    partial = touched & ~whole
    return TileMask(first, last, _order(partial), _order(whole), _order(partial.T), _order(whole.T))


def _covered(
    row: AnyNumbers, begin: AnyNumbers, end: AnyNumbers, rows: int, columns: int
) -> NDArray[np.int64]:
    """How often each tile [rows, columns] lies in one of the intervals of its row."""
    changes = np.zeros((rows, columns + 1), np.int64)
    some = end > begin
    np.add.at(changes, (row[some], begin[some]), 1)
    np.subtract.at(changes, (row[some], end[some]), 1)
    counts: NDArray[np.int64] = changes.cumsum(axis=1)[:, :-1]
    return counts


def _order(tiles: NDArray[np.bool_]) -> Ordered:
    columns = np.argsort(~tiles, axis=1, kind="stable").astype(np.int32)
    return Ordered(tiles.sum(axis=1, dtype=np.int32), columns)
