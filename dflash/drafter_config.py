"""A drafter's config.json, in the form that z-lab's, SGLang's and vLLM's loaders read: written and read.

`block_size` counts slots, the anchor's own included: a drafter of block size b drafts b - 1 tokens.
Knows nothing of weights.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dflash.attention import full, sliding
from dflash.contract.errors import CheckpointError
from dflash.drafter import DrafterSpec

config_name = "config.json"
architecture = "DFlashDraftModel"

# Of other drafters of the family, which ours cannot run; value: with which they change nothing.
_unknown_here = {
    "is_causal": None,
    "causal": None,
    "input_embedding_scale": 1.0,
    "output_multiplier": 1.0,
    "final_logit_softcapping": None,
    "conv_kernel_size": None,
    "selector_rank": None,
    "attention_bias": False,
    "hidden_act": "silu",
    "draft_vocab_size": None,
}


def drafter_config(spec: DrafterSpec, dtype: str) -> dict[str, Any]:
    """config.json of a drafter with weights of that dtype."""
    windowed = sliding in spec.layer_types
    return {
        "architectures": [architecture],
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


def read_config(path: Path) -> dict[str, Any]:
    """The JSON object in a config.json. Raises CheckpointError."""
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"the drafter's config.json cannot be read: {error}", where=str(path)) from None
    if not isinstance(stored, dict):
        raise CheckpointError("the drafter's config.json is not a JSON object", where=str(path))
    return stored


def read_spec(path: Path) -> DrafterSpec:
    """The shape of the drafter that a config.json is of, ours or a published one. Raises CheckpointError.

    What stands in `dflash_config` goes before the same key at the top, as in z-lab's loader and SGLang's.
    """
    config = read_config(path)
    nested = config.get("dflash_config")
    found = {**config, **nested} if isinstance(nested, dict) else config
    _check_kind(found, path)
    try:
        layers = int(found["num_hidden_layers"])
        heads = int(found["num_attention_heads"])
        return DrafterSpec(
            hidden=int(found["hidden_size"]),
            layers=layers,
            heads=heads,
            kv_heads=int(found["num_key_value_heads"]),
            head_dim=int(found.get("head_dim") or found["hidden_size"] // heads),
            intermediate=int(found["intermediate_size"]),
            taps=tuple(int(tap) for tap in found["target_layer_ids"]),
            block_size=int(found["block_size"]),
            layer_types=_layer_types(found, layers),
            sliding_window=int(found.get("sliding_window") or 1),
            mask_token_id=int(found["mask_token_id"]),
            rope_theta=_rope_theta(found),
            rms_eps=float(found["rms_norm_eps"]),
            vocab=int(found["vocab_size"]),
            max_positions=int(found["max_position_embeddings"]),
            target_layers=int(found["num_target_layers"]),
        )
    except KeyError as error:
        raise CheckpointError(
            f"the drafter's config.json has no {error.args[0]}", where=str(path), expected=_expected
        ) from None
    except (TypeError, ValueError) as error:
        raise CheckpointError(
            f"the drafter's config.json makes no sense: {error}", where=str(path), expected=_expected
        ) from None


_expected = f"the config.json of a {architecture}, as `dflash-train export` writes it"


def _check_kind(found: Mapping[str, Any], path: Path) -> None:
    """That it is a drafter of our kind, with nothing that we would leave out in silence."""
    kinds = found.get("architectures")
    if kinds != [architecture]:
        raise CheckpointError(
            "this is no DFlash drafter", where=str(path), found=f"architectures {kinds}", expected=_expected
        )
    for key, harmless in _unknown_here.items():
        if found.get(key, harmless) not in (harmless, None):
            raise CheckpointError(
                f"the drafter wants {key}, which is not known here",
                where=str(path),
                found=found[key],
                expected=f"{key} {'left out' if harmless is None else harmless}",
            )


def _layer_types(found: Mapping[str, Any], layers: int) -> tuple[str, ...]:
    """As listed; else what transformers makes of `use_sliding_window` and `max_window_layers`."""
    listed = found.get("layer_types")
    if listed is None:
        first = int(found["max_window_layers"]) if found.get("use_sliding_window") else layers
        listed = [sliding if layer >= first else full for layer in range(layers)]
    if len(listed) != layers or not set(listed) <= {full, sliding}:
        raise ValueError(f"layer_types {listed} of {layers} layers")
    if sliding in listed and not found.get("sliding_window"):
        raise ValueError("sliding layers without sliding_window")
    return tuple(listed)


def _rope_theta(found: Mapping[str, Any]) -> float:
    rope = found.get("rope_parameters") or found.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        raise ValueError(f"positions of type {kind!r} are not known here")
    theta = rope.get("rope_theta") or found.get("rope_theta")
    if theta is None:
        raise KeyError("rope_theta")
    return float(theta)
