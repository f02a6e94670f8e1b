"""Which kernels a run uses, in words, for the start-up line and run.json. Decides nothing."""

from __future__ import annotations

import os
from importlib import metadata

import torch

from dflash.contract.config import TrainConfig
from dflash.target import LoadedTarget

linear_attention = "flash-linear-attention"


def describe_kernels(config: TrainConfig, loaded: LoadedTarget) -> dict[str, str]:
    """{part: kernel}. `gated_deltanet` is there only for hybrid targets."""
    chunk = config.objective.chunk_blocks
    kernels = {
        "attention": loaded.attention,
        "drafter_attention": "sdpa by document",
        "loss": f"cross entropy by {chunk} blocks" if chunk else "cross entropy",
        "optimizer": "torch AdamW",
    }
    if loaded.spec.hybrid:
        kernels["gated_deltanet"] = _gated_deltanet()
    if (switch := compiler_switch()) is not None:
        kernels["torch.compile"] = f"switched off by {switch}: whatever would be compiled runs as it stands"
    return kernels


def compiler_switch() -> str | None:
    """The debugging switch in the environment that turns torch.compile off, if one does."""
    for name in ("TORCHDYNAMO_DISABLE", "TORCH_COMPILE_DISABLE"):
        if os.environ.get(name, "0") == "1":  # the one value that torch takes for yes
            return f"{name}=1"
    return None


def _gated_deltanet() -> str:
    """Transformers takes the fast kernels where they are installed and CUDA is there."""
    try:
        version = metadata.version(linear_attention)
    except metadata.PackageNotFoundError:
        return f"reference PyTorch (slow): install {linear_attention}"
    if not torch.cuda.is_available():
        return f"reference PyTorch (slow): {linear_attention} {version} needs CUDA"
    return f"{linear_attention} {version}"
