"""Where a target's weights come from: seeded (`random:SHAPE`), a directory, a GGUF file, or the hub.

Always onto the CPU, complete: a model that lacks a weight is refused, never filled up with random numbers.

Knows nothing of taps or devices.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from dflash.contract.errors import ConfigError, DeviceError
from dflash.contract.model_shapes import random_prefix
from dflash.model_source import find_model
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

    Raises ConfigError when it cannot be had, DeviceError when the attention kernel or a package is lacking.
    """
    try:
        if name.startswith(random_prefix):
            return _seeded(name.removeprefix(random_prefix), seed, dtype, attention)
        return take_apart(read_model(name, dtype=dtype, attention=attention))
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
    _settle_recurrent(body)
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

    source = find_model(name)
    try:
        config = AutoConfig.from_pretrained(source.place, trust_remote_code=False, **source.options)
    except (OSError, ValueError, KeyError) as error:
        raise _unloadable(name, error) from error
    return cast("PretrainedConfig", config.get_text_config())


def read_model(name: str, *, dtype: torch.dtype, attention: str = "sdpa") -> Any:
    """The whole causal language model of a directory, GGUF file or the hub, as transformers has it.

    Raises ConfigError when it cannot be had or lacks weights.
    """
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    source = find_model(name)
    try:
        model, report = cast(Any, AutoModelForCausalLM).from_pretrained(
            source.place,
            dtype=dtype,
            attn_implementation=attention,
            trust_remote_code=False,
            output_loading_info=True,
            **source.options,
        )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise _unloadable(name, error) from error
    _check_complete(name, model, report)
    return model


def _check_complete(name: str, model: Any, report: dict[str, Any]) -> None:
    """Transformers only warns of weights that it made up."""
    tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
    head = {key for key in report["missing_keys"] if tied and key.endswith("lm_head.weight")}
    lacking = sorted(set(report["missing_keys"]) - head)
    others = sorted(e if isinstance(e, str) else str(e[0]) for e in report["mismatched_keys"])
    if not lacking and not others:
        return
    kind, names = ("lacks", lacking) if lacking else ("has other shapes of", others)
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    raise ConfigError(
        f"the target {kind} weights that its config.json asks for",
        where="target.model",
        found=f"{name}: {', '.join(names[:3])}{more}",
        expected="a complete model whose weights fit its configuration",
        remedy="download the model again, with all of its shards",
    )


def take_apart(model: Any) -> TargetWeights:
    """A causal language model as body, embedding and head, which share its memory."""
    embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    tied = head is embedding
    embedding = embedding.detach()
    return TargetWeights(
        model.get_decoder(), embedding, embedding if tied else head.detach(), model.config.get_text_config()
    )


def _settle_recurrent(body: nn.Module) -> None:
    """Give the vectors of a seeded GatedDeltaNet target what training would start from.

    Its norms count gains from one, so that ones would double everything; its heads forget at rates that are
    spread out, so that some carry a state through a whole document.
    """
    if not any(name.endswith("A_log") for name, _ in body.named_parameters()):
        return
    for name, parameter in body.named_parameters():
        values = parameter.data
        if name.endswith("A_log"):
            values.copy_(torch.linspace(log(0.01), log(4.0), len(values)))
        elif name.endswith("norm.weight") and ".linear_attn." not in name:
            values.zero_()


def _unloadable(name: str, error: Exception) -> ConfigError:
    return ConfigError(
        f"the target cannot be loaded: {_first_line(error)}",
        where="target.model",
        found=name,
        remedy="check the name; without network, give the directory of a downloaded model, smollm2 "
        "or random:tiny",
    )


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
