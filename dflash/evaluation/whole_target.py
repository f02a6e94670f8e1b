"""A target with all its layers and its head, on one device: what it writes, and its states of a text.

Greedy: the token with the highest logit, with no penalty and no sampling, whatever the model's own settings
for generation say. Decoding here is plain: one token after the other, with transformers' cache. Knows nothing
of drafters.

Shapes: n tokens of a text, R prompts, F taps, H hidden width, V vocabulary.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from dflash.attention import upload
from dflash.contract.sections import TargetConfig
from dflash.devices import resolve_dtype
from dflash.target_shapes import TargetSpec
from dflash.target_weights import read_target

logits_at_once = 256  # tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class TextStates:
    """What one pass over a text gives."""

    taps: Tensor  # [n, F*H] on the target's device, ascending layers
    greedy: Tensor  # [n] int64 on the CPU: what the target would write behind each token


class WholeTarget:
    """Used by one thread at a time. All weights frozen."""

    def __init__(self, config: TargetConfig, device: torch.device, taps: Sequence[int]) -> None:
        """Loads it. `taps`: ascending layer numbers. Raises ConfigError, DeviceError."""
        dtype = resolve_dtype(config.dtype, device.type)
        attention = config.attention if config.attention in ("eager", "flash_attention_2") else "sdpa"
        weights = read_target(config.model, seed=config.seed, dtype=dtype, attention=attention)
        self.device, self.dtype = device, dtype
        self.spec = TargetSpec.of(weights.config, config.model)
        self._body: Any = weights.body.requires_grad_(False).eval().to(device)
        self.embedding = weights.embedding.to(device)
        self.head = self.embedding if self.spec.tied else weights.head.to(device)
        self.stop_ids = _stop_ids(weights.config)
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
            greedy = [self._choose(part) for part in torch.split(last, logits_at_once)]
        return TextStates(taps=taps, greedy=torch.cat(greedy).cpu())

    def answer(
        self, prompts: Sequence[Sequence[int]], max_new_tokens: int, stops: Collection[int]
    ) -> list[list[int]]:
        """Its greedy answer to each prompt, up to and with the first of `stops`.

        Prompts of several lengths are padded on the left, which can decide between tokens that are all but
        equally likely.
        """
        width = max(len(prompt) for prompt in prompts)
        rows = torch.zeros(len(prompts), width, dtype=torch.int64)
        mask = torch.zeros(len(prompts), width, dtype=torch.int64)
        for row, prompt in enumerate(prompts):
            rows[row, width - len(prompt) :] = torch.tensor(prompt)
            mask[row, width - len(prompt) :] = 1
        written = self._decode(upload(rows, self.device), upload(mask, self.device), max_new_tokens, stops)
        return [_until(row, stops) for row in written.tolist()]

    def _decode(self, ids: Tensor, mask: Tensor, most: int, stops: Collection[int]) -> Tensor:
        """[R, up to `most`] on the CPU; what stands behind a stop means nothing."""
        padded = not bool(mask.all())
        places = (mask.cumsum(1) - 1).clamp(min=0)
        ends = torch.tensor(sorted(stops), dtype=torch.int64, device=self.device)
        ended = torch.zeros(len(ids), dtype=torch.bool, device=self.device)
        written, cache = list[Tensor](), cast(Any, None)
        with torch.no_grad():
            while len(written) < most and not bool(ended.all()):
                inputs = {"attention_mask": mask} if padded else {}
                if cache is not None:
                    inputs[self._cache_name] = cache
                out = self._body(input_ids=ids, position_ids=places, use_cache=True, **inputs)
                cache = getattr(out, self._cache_name)
                token = self._choose(out.last_hidden_state[:, -1])
                written.append(token)
                ended |= torch.isin(token, ends)
                ids, places = token[:, None], places[:, -1:] + 1
                mask = torch.cat([mask, mask.new_ones(len(mask), 1)], dim=1)
        return torch.stack(written, dim=1).cpu()

    def _choose(self, states: Tensor) -> Tensor:
        """The likeliest next token of each state [·, H]: [·] int64."""
        return functional.linear(states, self.head).argmax(-1)


def _until(row: Sequence[int], stops: Collection[int]) -> list[int]:
    """The tokens up to and with the first of `stops`."""
    end = next((place + 1 for place, token in enumerate(row) if token in stops), len(row))
    return list(row[:end])


def _stop_ids(config: Any) -> frozenset[int]:
    """Tokens that end a text by the model's configuration."""
    found = getattr(config, "eos_token_id", None)
    return frozenset([] if found is None else [found] if isinstance(found, int) else found)
