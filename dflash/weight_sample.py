"""What weights are known by without reading them all: a few values of every tensor, spread over it.

A finetune of the same shape differs in every tensor that was trained, so that a sample tells it apart. Values
are taken as bfloat16: the same weights loaded in another precision are the same. Knows nothing of models.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch
from torch import Tensor

values_each = 64


def sample_weights(named: Iterable[tuple[str, Tensor]]) -> str:
    """A digest of some values of every tensor, by name; of tensors on the CPU."""
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in sorted(named):
        flat = tensor.detach().reshape(-1)
        count = min(values_each, flat.numel())
        # In whole numbers: in float32 the last place of a large tensor would lie past its end.
        places = torch.arange(count) * (flat.numel() - 1) // max(1, count - 1)
        values = flat[places].to(torch.bfloat16).view(torch.int16)
        digest.update(f"{name} {list(tensor.shape)} {values.tolist()}".encode())
    return digest.hexdigest()
