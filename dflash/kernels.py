"""Which kernels a run uses, in words, for the start-up line and run.json. Decides nothing."""

from __future__ import annotations

import importlib
from importlib import metadata

import torch

from dflash.compiling import compiler_switch
from dflash.contract.config import TrainConfig
from dflash.devices import wants_cuda
from dflash.drafter_kernels import takes_tiles
from dflash.packing import LayoutKind
from dflash.target import Target
from dflash.target_attention import flash_attn_version, varlen_obstacle
from dflash.target_shapes import TargetSpec

linear_attention = "flash-linear-attention"
recurrent_packages = {linear_attention: "fla", "causal-conv1d": "causal_conv1d"}  # and their import names


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


def slow_kernels(config: TrainConfig, target: Target) -> list[str]:
    """What costs this target much of its speed here, one sentence each, with what to install."""
    return [line for line in (slow_recurrence(target.spec), _slow_attention(config, target)) if line]


def slow_recurrence(spec: TargetSpec) -> str | None:
    """What slows down the recurrent layers of a hybrid target here, with what to install; None: nothing."""
    missing = {name: lack for name in recurrent_packages if (lack := _lack(name))} if spec.hybrid else {}
    if not missing:
        return None
    lacks = ", ".join(f"{name} {lack}" for name, lack in missing.items())
    return (
        "the target's recurrent layers run on reference PyTorch, several times slower: "
        f"{lacks} (pip install {' '.join(missing)})"
    )


def _lack(package: str) -> str | None:
    """Why transformers will not use an installed kernel package; None when it will."""
    if _version(package) is None:
        return "is not installed"
    try:
        importlib.import_module(recurrent_packages[package])
    except Exception as error:  # noqa: BLE001 - transformers falls back on whatever its import raises
        return f"is installed and cannot be imported ({type(error).__name__}: {str(error)[:200]})"
    return None


def _slow_attention(config: TrainConfig, target: Target) -> str | None:
    """On CUDA a plain target that was free to choose should attend to documents by their lengths."""
    choice = config.target.attention
    if target.device.type != "cuda" or choice not in ("auto", "eager") or target.varlen:
        return None
    dtype = target.dtype
    obstacle = varlen_obstacle(target.spec, dtype, "cuda")
    if target.spec.hybrid or (obstacle is None and choice == "auto"):
        return None
    reason = obstacle or f"target.attention is {choice}"
    package = (
        "" if flash_attn_version() else " (pip install flash-attn, or a torch with torch.nn.attention.varlen)"
    )
    hint = package if obstacle and "installed" in obstacle else ""
    return f"the target attends by {target.kernel} over padded or masked rows, slower: {reason}{hint}"


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
    if (lack := _lack(linear_attention)) is not None:
        return f"reference PyTorch (slow): {linear_attention} {version} {lack}"
    if not torch.cuda.is_available():
        return f"reference PyTorch (slow): {linear_attention} {version} needs CUDA"
    return f"{linear_attention} {version}"


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
