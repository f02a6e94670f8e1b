"""Which kernels a run uses, in words, for the start-up line and run.json. Decides nothing."""

from __future__ import annotations

from importlib import metadata

import torch

from dflash.compiling import compiler_switch
from dflash.contract.config import TrainConfig
from dflash.devices import wants_cuda
from dflash.drafter_kernels import takes_tiles
from dflash.packing import LayoutKind
from dflash.target import Target
from dflash.target_shapes import TargetSpec

linear_attention = "flash-linear-attention"
recurrent_packages = (linear_attention, "causal-conv1d")


def describe_kernels(config: TrainConfig, target: Target, layout: LayoutKind) -> dict[str, str]:
    """{part: kernel}. `gated_deltanet` is there only for hybrid targets."""
    chunk = config.objective.chunk_blocks
    kernels = {
        "attention": target.kernel,
        "target_rows": layout,
        "target_layers": _layers(target),
        "drafter_attention": _drafter_attention(config, target.spec),
        "loss": f"cross entropy by {chunk} blocks" if chunk else "cross entropy",
        "optimizer": "torch AdamW",
    }
    if target.spec.hybrid:
        kernels["gated_deltanet"] = _gated_deltanet()
    if (switch := compiler_switch()) is not None:
        kernels["torch.compile"] = f"switched off by {switch}: whatever would be compiled runs as it stands"
    return kernels


def slow_kernels(spec: TargetSpec) -> list[str]:
    """What costs this target much of its speed here, one sentence each."""
    missing = [name for name in recurrent_packages if _version(name) is None] if spec.hybrid else []
    if not missing:
        return []
    lack = f"{' and '.join(missing)} not installed (pip install {' '.join(missing)})"
    return [f"the target's recurrent layers run on reference PyTorch, several times slower: {lack}"]


def _drafter_attention(config: TrainConfig, spec: TargetSpec) -> str:
    device_type = "cuda" if wants_cuda(config) else "cpu"
    return (
        "flex, in compiled layers" if takes_tiles(config.drafter, spec, device_type) else "sdpa by document"
    )


def _layers(target: Target) -> str:
    if not target.compiled:
        return "as they stand"
    failures = {function.failure for function in target.compiled if function.failure is not None}
    return f"as they stand: {'; '.join(sorted(failures))}" if failures else "compiled"


def _gated_deltanet() -> str:
    """Transformers takes the fast kernels where they are installed and CUDA is there."""
    version = _version(linear_attention)
    if version is None:
        return f"reference PyTorch (slow): install {linear_attention}"
    if not torch.cuda.is_available():
        return f"reference PyTorch (slow): {linear_attention} {version} needs CUDA"
    return f"{linear_attention} {version}"


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
