"""Whether documents may share the rows of a target: tried out, in the layout and kernel to be used.

Knows nothing of data; the probe's tokens are made up.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from dflash.contract.config import TrainConfig
from dflash.contract.errors import ConfigError
from dflash.dense_attention import worth_dense
from dflash.packing import LayoutKind, lay_out, positions_within
from dflash.target import Target

lengths = [7, 20, 9]  # of the probe's documents; packed, the last and the first share a row, with padding
# Those of a second probe where long documents have a kernel of their own, which reads on into the next ones.
long_lengths = [7, worth_dense + 5, 20, worth_dense]


def choose_layout(config: TrainConfig, target: Target) -> LayoutKind:
    """The rows that this target is given. Raises ConfigError for a wish that leaks, or that it cannot run."""
    choice = config.target.layout
    if choice == "padded":
        return "padded"
    if choice == "flat" and not target.varlen:
        raise ConfigError(
            "one flat row needs variable-length attention",
            where="target.layout",
            found=f"flat, with attention {target.kernel}",
            remedy="set target.attention to varlen, or target.layout to auto",
        )
    kinds: tuple[LayoutKind, ...] = ("flat", "packed") if target.varlen else ("packed",)
    for kind in kinds:
        if choice in ("auto", kind) and keeps_apart(target, kind):
            return kind
    if choice != "auto":
        raise ConfigError(
            "documents that share a row would see each other in this target",
            where="target.layout",
            found=choice,
            remedy="set target.layout to auto or padded",
        )
    return "padded"


def keeps_apart(target: Target, kind: LayoutKind) -> bool:
    """Whether documents that share rows come out as they do alone, untouched by their neighbours."""
    if target.spec.attention_kinds != ("full_attention",):
        return False  # recurrent states run on across documents; windows would be lost in our mask
    long_too = kind == "flat" and target.dense and target.spec.max_positions >= max(long_lengths)
    probes = [lengths, long_lengths] if long_too else [lengths]
    return all(_keeps_apart(target, kind, sizes) for sizes in probes)


def _keeps_apart(target: Target, kind: LayoutKind, sizes: list[int]) -> bool:
    ids = torch.arange(1, sum(sizes) + 1) * 7919 % target.spec.vocab
    documents = torch.split(ids, sizes)
    together = _probe(target, documents, kind)
    for shared, document in zip(together, documents, strict=True):
        (alone,) = _probe(target, (document,), "padded")
        error = (shared.float() - alone.float()).norm() / alone.float().norm()
        if float(error) > (1e-3 if alone.dtype == torch.float32 else 5e-2):
            return False
    return all(_is_unseen(target, kind, documents, changed, together) for changed in range(len(documents)))


def _is_unseen(
    target: Target, kind: LayoutKind, documents: tuple[Tensor, ...], changed: int, before: list[Tensor]
) -> bool:
    """Whether the others come out the same to the bit when a document is another one.

    The same kernels run on the same shapes, so neighbours that are not seen contribute exactly nothing.
    """
    others = list(documents)
    others[changed] = (documents[changed] + 1) % target.spec.vocab
    after = _probe(target, others, kind)
    return all(torch.equal(before[i], after[i]) for i in range(len(documents)) if i != changed)


def _probe(target: Target, documents: Sequence[Tensor], kind: LayoutKind) -> list[Tensor]:
    """Taps of each document."""
    sizes = np.array([len(document) for document in documents])
    layout = lay_out(sizes, kind)
    positions = torch.from_numpy(positions_within(sizes))
    taps = target.run(torch.cat(list(documents)), positions, tuple(sizes.tolist()), layout)
    return list(torch.split(taps, sizes.tolist()))
