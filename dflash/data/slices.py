"""Documents set apart from training, chosen by their texts alone.

A text is held out or not by a number made of its tokens and the seed. So the choice does not depend on the
order of rows, on how many there are or on who prepared them, equal texts are never on both sides, and a text
keeps its side when rows are added. Knows nothing of what is done with either side.
"""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import overload

import numpy as np
from numpy.typing import NDArray

from dflash.contract.config import TrainConfig
from dflash.contract.errors import DataError
from dflash.data.documents import Columns, Document, Documents, KnownDocuments

automatic_share = 0.01
automatic_from = 1000  # documents; of fewer, none can be spared unasked


class ChosenDocuments(KnownDocuments):
    """Some documents of a set, in its order; views, made when they are asked for."""

    def __init__(self, whole: Documents, numbers: NDArray[np.int64]) -> None:
        """`numbers` [n]: which, ascending."""
        self._whole, self._numbers = whole, numbers
        digest = hashlib.blake2b(numbers.tobytes(), digest_size=8).hexdigest()
        self.identity = f"{len(numbers)} ({digest}) of {whole.identity}"

    @cached_property
    def columns(self) -> Columns:
        """Of these alone."""
        columns, numbers = self._whole.columns, self._numbers
        return Columns(
            lengths=columns.lengths[numbers],
            candidates=columns.candidates[numbers],
            supervised=columns.supervised[numbers],
            texts=columns.texts[numbers],
        )

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, key: int) -> Document: ...
    @overload
    def __getitem__(self, key: slice) -> tuple[Document, ...]: ...
    def __getitem__(self, key: int | slice) -> Document | tuple[Document, ...]:
        items = self._whole.items
        if isinstance(key, slice):
            return tuple(items[int(number)] for number in self._numbers[key])
        return items[int(self._numbers[key])]


def share_held_out(config: TrainConfig, documents: Documents) -> float:
    """The share of texts to hold out that `data.held_out` comes to for these documents."""
    if config.data.held_out >= 0:
        return config.data.held_out
    return automatic_share if len(documents.items) >= automatic_from else 0.0


def hold_out(documents: Documents, config: TrainConfig) -> tuple[Documents, Documents | None]:
    """Documents to train on, and those held out; None: none are. Raises DataError when nothing is left."""
    share = share_held_out(config, documents)
    if share == 0:
        return documents, None
    keys = text_keys(documents.columns.texts, config.data.seed)
    apart = keys < np.uint64(min(share * 2.0**64, 2.0**64 - 2048))  # what float64 can say below 2^64
    if bool(apart.all()):
        raise DataError(
            "every document is held out, none is left to train on",
            where="data.held_out",
            found=f"{len(keys)} documents with {len(np.unique(keys))} different texts, share {share:g}",
            remedy="lower data.held_out, or bring more texts",
        )
    if not bool(apart.any()):
        return documents, None
    return _chosen(documents, ~apart), _chosen(documents, apart)


def text_keys(texts: NDArray[np.uint64], seed: int) -> NDArray[np.uint64]:
    """A number for each text [N], uniform over 64 bits, that depends on it and the seed alone.

    SplitMix64's finalizer, twice; written out, as it must never change.
    """
    mixed = texts.astype(np.uint64)
    for addend in (np.uint64(seed % 2**64), np.uint64(0x9E3779B97F4A7C15)):
        mixed = mixed + addend
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed = mixed ^ (mixed >> np.uint64(31))
    return mixed


def _chosen(documents: Documents, which: NDArray[np.bool_]) -> Documents:
    return Documents(ChosenDocuments(documents, np.flatnonzero(which).astype(np.int64)), documents.books)


def smallest_keys(documents: Documents, seed: int) -> NDArray[np.int64]:
    """Numbers of the documents with different texts, in the order of their keys: a sample from the front.

    Of equal texts the first.
    """
    texts, first = np.unique(documents.columns.texts, return_index=True)
    order: NDArray[np.int64] = first[np.argsort(text_keys(texts, seed), kind="stable")].astype(np.int64)
    return order
