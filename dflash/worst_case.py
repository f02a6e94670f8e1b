"""Made-up documents that need as much memory as any mix of a data set can: what a soak trains on.

Either every document has the greatest length and is supervised from end to end, or all are as those of the
batch that the data set itself makes largest, whichever comes to more. Knows nothing of devices or of bytes.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from dflash.contract.config import TrainConfig
from dflash.contract.sections import WindowConfig
from dflash.data.documents import Document, Documents
from dflash.packing import pack
from dflash.random_keys import random_keys
from dflash.window import plan_windows

windows_looked_at = 2000  # of the first epoch
windows_made = 512  # more than a soak of seconds trains
Sizes = list[tuple[int, int]]  # tokens and places for an anchor of each document of a batch


def make_worst(config: TrainConfig, documents: Documents) -> tuple[TrainConfig, Documents]:
    """The configuration and documents of a soak: every window of its first epoch is full batches, all alike.

    A window holds one for each drafter or more. Everything else is as it was; what is learned means nothing.
    """
    longest, densest = _longest(config), _densest(config, documents)
    chosen = max(longest, densest, key=lambda sizes: _weight(config, sizes))
    batch_tokens = sum(length for length, _ in chosen)
    count = -(-config.pipeline.token_budget * config.split.drafters // batch_tokens)
    made = [_document(length, places, documents) for length, places in chosen] * count * windows_made
    # The epoch's order is a permutation, and it is to be this one.
    keys = random_keys(len(made), seed=config.data.seed, purpose="order", epoch=0)
    places_in_file = np.argsort(np.argsort(keys, kind="stable"), kind="stable")
    return (
        dataclasses.replace(config, window=WindowConfig(tokens=count * batch_tokens)),
        Documents(tuple(made[place] for place in places_in_file), documents.books),
    )


def _weight(config: TrainConfig, sizes: Sizes) -> int:
    """Slots and tokens of a batch, as the memory plan compares batches."""
    limit, block = config.objective.anchors_per_document, config.drafter.block_size
    return sum(length + min(places, limit) * block for length, places in sizes)


def _longest(config: TrainConfig) -> Sizes:
    """The budget filled with documents of the greatest length, and one that takes what is left."""
    budget, length = config.pipeline.token_budget, config.data.max_length
    left = budget % length
    lengths = [length] * (budget // length) + [left] * (left >= config.drafter.block_size)
    return [(each, each - 1) for each in lengths]


def _densest(config: TrainConfig, documents: Documents) -> Sizes:
    """The documents of the largest batch that the data set makes."""
    places, lengths = documents.columns.candidates, documents.lengths
    windows = plan_windows(lengths, config.window.tokens, seed=config.data.seed, epoch=0)
    best: Sizes = []
    for members in windows[:windows_looked_at]:
        for group in pack(lengths[members], config.pipeline.token_budget, "packed"):
            numbers = members[group]
            sizes = list(zip(lengths[numbers].tolist(), places[numbers].tolist(), strict=True))
            best = max(best, sizes, key=lambda sizes: _weight(config, sizes))
    return best


def _document(length: int, places: int, documents: Documents) -> Document:
    """A document of that length with that many places for an anchor, of tokens that the data set has."""
    ids: NDArray[np.int32] = np.resize(documents.items[0].ids, length)
    mask = np.zeros(length, np.bool_)
    mask[: places + 1] = True
    return Document(ids=ids, loss_mask=mask, file="worst case", line=1)
