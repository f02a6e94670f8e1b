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


def sample_weights(tensors: Iterable[Tensor]) -> str:
    """A digest of some values of every tensor on the CPU, whatever their order is and they are called."""
    each = sorted(_sample(tensor) for tensor in tensors)
    return hashlib.blake2b("".join(each).encode(), digest_size=16).hexdigest()


def _sample(tensor: Tensor) -> str:
    flat = tensor.detach().reshape(-1)
    count = min(values_each, flat.numel())
    # In whole numbers: in float32 the last place of a large tensor would lie past its end.
    places = torch.arange(count) * (flat.numel() - 1) // max(1, count - 1)
    values = flat[places].to(torch.bfloat16).view(torch.int16)
    return f"{list(tensor.shape)} {values.tolist()}"
