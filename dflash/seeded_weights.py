"""Seeded normal weights: the same on every machine and number of threads, without the global generator.

Modules are built on the meta device and filled parameter by parameter, so that memory is needed once. Knows
nothing of what the modules are for.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor, nn

M = TypeVar("M", bound=nn.Module)


def build_seeded(build: Callable[[], M], *, seed: int, std: float, dtype: torch.dtype) -> M:
    """The module that `build` makes, on the CPU: matrices from normal(0, std), vectors (norm gains) ones.

    Buffers are left undefined; a module that has some fills them itself.
    """
    with torch.device("meta"):
        module = build().to(dtype)
    module.to_empty(device="cpu")
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        # A generator for each parameter, keyed by its name: the draws do not depend on order or threads.
        for filled in [pool.submit(_fill, name, p.data, seed, std) for name, p in module.named_parameters()]:
            filled.result()
    return module


def draw_seeded(name: str, shape: tuple[int, ...], *, seed: int, std: float, dtype: torch.dtype) -> Tensor:
    """One matrix from normal(0, std), as `build_seeded` fills a parameter of that name."""
    tensor = torch.empty(shape, dtype=dtype)
    _fill(name, tensor, seed, std)
    return tensor


def _fill(name: str, tensor: Tensor, seed: int, std: float) -> None:
    if tensor.ndim == 1:
        tensor.fill_(1.0)
        return
    # A CPU generator keeps only 32 bits of its seed.
    generator = torch.Generator().manual_seed(zlib.crc32(f"{seed} {name}".encode()))
    tensor.normal_(0.0, std, generator=generator)
