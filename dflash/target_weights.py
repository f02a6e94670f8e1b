"""Where a target's weights come from: seeded (`random:SHAPE`), a directory, or the hub. Always onto the CPU.

Knows nothing of taps or devices.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from dflash.contract.errors import ConfigError, DeviceError
from dflash.contract.model_shapes import random_prefix
from dflash.seeded_weights import build_seeded, draw_seeded
from dflash.target_shapes import random_config

if TYPE_CHECKING:
    from transformers import PretrainedConfig


@dataclass(frozen=True, slots=True)
class TargetWeights:
    """A causal language model taken apart. Shapes: V vocabulary, H hidden width."""

    body: nn.Module  # text decoder, without head
    embedding: Tensor  # [V, H]
    head: Tensor  # [V, H]; the same object as `embedding` when tied
    config: PretrainedConfig  # of the text decoder


def read_target(name: str, *, seed: int, dtype: torch.dtype, attention: str) -> TargetWeights:
    """The model called `name`. Leaves the global random generator alone.

    Raises ConfigError when it cannot be had, DeviceError when the attention kernel is not installed.
    """
    try:
        if name.startswith(random_prefix):
            return _seeded(name.removeprefix(random_prefix), seed, dtype, attention)
        return _pretrained(name, dtype, attention)
    except ImportError as error:
        raise DeviceError(
            f"the attention kernel is not installed: {_first_line(error)}",
            where="target.attention",
            found=attention,
            remedy="install it, or set target.attention to sdpa",
        ) from None


def _seeded(shape: str, seed: int, dtype: torch.dtype, attention: str) -> TargetWeights:
    from transformers import AutoModel

    config, from_config = random_config(shape), cast(Any, AutoModel.from_config)
    std = float(config.initializer_range)
    body: Any = build_seeded(
        lambda: cast(nn.Module, from_config(config, attn_implementation=attention)),
        seed=seed,
        std=std,
        dtype=dtype,
    )
    # Its buffers hold the rotary frequencies, which seeding leaves undefined.
    body.rotary_emb = type(body.rotary_emb)(config=config)
    embedding = body.get_input_embeddings().weight.detach()
    if config.tie_word_embeddings:
        return TargetWeights(body, embedding, embedding, config)
    head = draw_seeded("lm_head", tuple(embedding.shape), seed=seed, std=std, dtype=dtype)
    return TargetWeights(body, embedding, head, config)


def read_config(name: str) -> PretrainedConfig:
    """The configuration of the text decoder of the model called `name`. Raises ConfigError."""
    if name.startswith(random_prefix):
        return random_config(name.removeprefix(random_prefix))
    from transformers import AutoConfig

    source = _source(name)
    try:
        config = AutoConfig.from_pretrained(source, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise _unloadable(name, error) from error
    return cast("PretrainedConfig", config.get_text_config())


def _pretrained(name: str, dtype: torch.dtype, attention: str) -> TargetWeights:
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    source = _source(name)
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(
            source, dtype=dtype, attn_implementation=attention, trust_remote_code=False
        )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise _unloadable(name, error) from error
    embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    tied = head is embedding
    embedding = embedding.detach()
    return TargetWeights(
        model.get_decoder(), embedding, embedding if tied else head.detach(), model.config.get_text_config()
    )


def _source(name: str) -> str:
    """The directory or hub name that transformers is given. Raises ConfigError for a missing directory."""
    path = Path(name).expanduser()
    looks_local = name.startswith((".", "/", "~")) or name.count("/") > 1
    if looks_local and not path.is_dir():
        raise ConfigError(
            "there is no such model directory",
            where="target.model",
            found=name,
            expected="a directory with config.json and safetensors, a hub name, or random:SHAPE",
        )
    return str(path) if path.is_dir() else name


def _unloadable(name: str, error: Exception) -> ConfigError:
    return ConfigError(
        f"the target cannot be loaded: {_first_line(error)}",
        where="target.model",
        found=name,
        remedy="check the name; without network, give the directory of a downloaded model or random:tiny",
    )


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
