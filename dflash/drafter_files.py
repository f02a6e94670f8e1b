"""A drafter on disk in the form that DFlash servers load: model.safetensors and config.json side by side.

Knows nothing of optimizers, steps or of which checkpoint is newest.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from dflash.attention import sliding
from dflash.contract.errors import CheckpointError
from dflash.contract.rundir import write_json
from dflash.drafter import Drafter, DrafterSpec

weights_name, config_name = "model.safetensors", "config.json"


def write_drafter(directory: Path, drafter: Drafter) -> None:
    """Both files, into an existing directory; weights in the drafter's dtype. Raises OSError, RunError."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in drafter.state_dict().items()}
    save_file(tensors, str(directory / weights_name), metadata={"format": "pt"})
    dtype = str(drafter.dtype).removeprefix("torch.")
    write_json(directory / config_name, drafter_config(drafter.spec, dtype))


def drafter_config(spec: DrafterSpec, dtype: str) -> dict[str, Any]:
    """config.json of a drafter, as z-lab's, SGLang's and vLLM's loaders read it."""
    windowed = sliding in spec.layer_types
    return {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "hidden_size": spec.hidden,
        "intermediate_size": spec.intermediate,
        "num_hidden_layers": spec.layers,
        "num_attention_heads": spec.heads,
        "num_key_value_heads": spec.kv_heads,
        "head_dim": spec.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": spec.rms_eps,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "max_position_embeddings": spec.max_positions,
        "vocab_size": spec.vocab,
        "initializer_range": 0.02,
        "tie_word_embeddings": False,
        "use_cache": True,
        "dtype": dtype,
        # Both: transformers 4 reads the first and would silently take 10000, transformers 5 reads the second.
        "rope_theta": spec.rope_theta,
        "rope_scaling": None,
        "rope_parameters": {"rope_type": "default", "rope_theta": spec.rope_theta},
        "layer_types": list(spec.layer_types),
        # Unless use_sliding_window is true, transformers drops sliding_window.
        "use_sliding_window": windowed,
        "sliding_window": spec.sliding_window if windowed else None,
        "max_window_layers": spec.layers,
        "num_target_layers": spec.target_layers,
        "block_size": spec.block_size,
        "dflash_config": {"mask_token_id": spec.mask_token_id, "target_layer_ids": list(spec.taps)},
    }


def read_drafter(directory: Path, spec: DrafterSpec) -> dict[str, Tensor]:
    """The state dict of a drafter of that shape, as stored. Raises CheckpointError when it is not one."""
    _check_config(directory / config_name, spec)
    path = directory / weights_name
    if not path.is_file():
        raise CheckpointError("the drafter weights are missing", where=str(path))
    try:
        tensors = load_file(str(path))
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"the drafter weights cannot be read: {error}",
            where=str(path),
            found=f"{path.stat().st_size} bytes",
            remedy="the file is damaged or cut off; use another checkpoint",
        ) from None
    _check_tensors(path, tensors, spec)
    return tensors


def _check_config(path: Path, spec: DrafterSpec) -> None:
    """What tensor shapes do not show must agree too: a wrong window or tap trains and serves, but badly."""
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"the drafter's config.json cannot be read: {error}", where=str(path)) from None
    if not isinstance(stored, dict):
        raise CheckpointError("the drafter's config.json is not a JSON object", where=str(path))
    expected = drafter_config(spec, dtype="")
    for key in ("block_size", "dflash_config", "layer_types", "sliding_window", "rope_theta", "rms_norm_eps"):
        if stored.get(key) != expected[key]:
            raise CheckpointError(
                f"the drafter was made with another {key}",
                where=str(path),
                found=stored.get(key),
                expected=expected[key],
                remedy="use the configuration it was trained with",
            )


def _check_tensors(path: Path, tensors: dict[str, Tensor], spec: DrafterSpec) -> None:
    shapes = _shapes(spec)
    for name, shape in shapes.items():
        if name not in tensors or tensors[name].shape != shape:
            raise CheckpointError(
                f"tensor {name} does not fit the drafter",
                where=str(path),
                found=list(tensors[name].shape) if name in tensors else "no such tensor",
                expected=list(shape),
                remedy="use the configuration it was trained with",
            )
    if unknown := sorted(tensors.keys() - shapes.keys()):
        raise CheckpointError(
            "the file holds tensors that the drafter does not have",
            where=str(path),
            found=", ".join(unknown[:4]) + (" …" if len(unknown) > 4 else ""),
            remedy="use the configuration it was trained with",
        )


def _shapes(spec: DrafterSpec) -> dict[str, torch.Size]:
    with torch.device("meta"):
        return {name: tensor.shape for name, tensor in Drafter(spec).state_dict().items()}
