"""A target with all its layers and its head, on one device: what it writes, and its states of a text.

Greedy: the token with the highest logit, with no penalty and no sampling, whatever the model's own settings
for generation say. Knows nothing of drafters.

Shapes: n tokens of a text, R prompts, F taps, H hidden width, V vocabulary.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import DynamicCache

from dflash.attention import upload
from dflash.contract.errors import ConfigError
from dflash.contract.model_shapes import random_prefix
from dflash.contract.sections import TargetConfig
from dflash.devices import avoid_attention_plans, fitting, resolve_dtype
from dflash.regeneration.decoding import Sampling, decode
from dflash.target_shapes import TargetSpec
from dflash.target_weights import TargetWeights, read_model, read_target, take_apart

logits_at_once = 256  # tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class TextStates:
    """What one pass over a text gives."""

    taps: Tensor  # [n, F*H] on the target's device, ascending layers
    greedy: Tensor  # [n] int64 on the CPU: what the target would write behind each token


class WholeTarget:
    """Used by one thread at a time. All weights frozen."""

    def __init__(self, config: TargetConfig, device: torch.device, taps: Sequence[int]) -> None:
        """Loads it. `taps`: ascending layer numbers.

        Raises ConfigError, DeviceError, and DFlashError when it does not fit into memory.
        """
        avoid_attention_plans(device)
        dtype = resolve_dtype(config.dtype, device.type)
        self.device, self.dtype = device, dtype
        with fitting(device):
            weights, generation = _read(config, dtype)
            tied = weights.head is weights.embedding
            self._body = cast(Any, weights.body.requires_grad_(False).eval().to(device))
            self.embedding: Tensor = self._body.get_input_embeddings().weight.detach()
            self.head = self.embedding if tied else weights.head.to(device)
        self.spec = TargetSpec.of(weights.config, config.model)
        self.stop_ids = _stop_ids(weights.config, generation)
        renamed = "cache" in inspect.signature(self._body.forward).parameters
        self._cache_name = "cache" if renamed else "past_key_values"  # newer and older transformers
        self._caught: list[Tensor | None] = [None] * len(taps)
        layers = cast(nn.ModuleList, self._body.layers)
        self._catching = False
        for index, tap in enumerate(taps):
            layers[tap].register_forward_hook(partial(self._catch, index))

    def _catch(self, index: int, _layer: nn.Module, _inputs: object, output: Tensor | tuple[Tensor]) -> None:
        if self._catching:
            self._caught[index] = output if isinstance(output, Tensor) else output[0]

    def read(self, ids: Tensor) -> TextStates:
        """Its states of a text, [n] int64 on the CPU."""
        row = upload(ids, self.device)[None]
        with torch.no_grad():
            self._catching = True
            try:
                last = self._body(input_ids=row, use_cache=False).last_hidden_state[0]
            finally:
                self._catching = False
            taps = torch.cat([cast(Tensor, states)[0] for states in self._caught], dim=-1)
            self._caught = [None] * len(self._caught)
            parts = torch.split(last, logits_at_once)
            greedy = torch.cat([functional.linear(part, self.head).argmax(-1) for part in parts])
        return TextStates(taps=taps, greedy=greedy.cpu())

    def answer(
        self, prompts: Sequence[Sequence[int]], max_new_tokens: int, stops: frozenset[int]
    ) -> list[list[int]]:
        """Its greedy answer to each prompt, up to and with the first of `stops`.

        Prompts of several lengths are padded on the left, which can decide between tokens that are all but
        equally likely. Raises ConfigError for more tokens than it has positions.
        """
        self._check_room(max(len(prompt) for prompt in prompts) + max_new_tokens)
        written = decode(
            self._next_logits,
            DynamicCache(config=self._body.config),
            [np.array(prompt, np.int32) for prompt in prompts],
            ends=stops,
            most=max_new_tokens,
            sampling=Sampling(),
            uniforms=None,
            device=self.device,
        )
        return [answer.ids for answer in written]

    def _check_room(self, tokens: int) -> None:
        if tokens > self.spec.max_positions:
            raise ConfigError(
                "the longest prompt and its answer do not fit into the target's positions",
                where=f"target.model = {self.spec.name}",
                found=f"{tokens} tokens",
                expected=f"at most {self.spec.max_positions}",
                remedy="lower --max-new-tokens or data.max_length",
            )

    def _next_logits(self, ids: Tensor, mask: Tensor, positions: Tensor, cache: Any) -> Tensor:
        """[R, V] behind the last of ids [R, ·]."""
        out = self._body(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            use_cache=True,
            **{self._cache_name: cache},
        )
        return functional.linear(out.last_hidden_state[:, -1], self.head)


def _read(config: TargetConfig, dtype: torch.dtype) -> tuple[TargetWeights, Any]:
    """Its weights and, of a model that has one, its configuration for generation."""
    attention = "eager" if config.attention == "eager" else "sdpa"
    if config.model.startswith(random_prefix):
        return read_target(config.model, seed=config.seed, dtype=dtype, attention=attention), None
    model = read_model(config.model, dtype=dtype, attention=attention)
    return take_apart(model), getattr(model, "generation_config", None)


def _stop_ids(*configs: Any) -> frozenset[int]:
    """Tokens that end a text by any of these configurations."""
    found = [getattr(config, "eos_token_id", None) for config in configs]
    lists = [[] if ids is None else [ids] if isinstance(ids, int) else ids for ids in found]
    return frozenset(token for ids in lists for token in ids)
