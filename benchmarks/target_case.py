"""Targets that benchmarks run: published shapes with random weights, made on the device, and their batches.

Knows nothing of what is timed.
"""

from __future__ import annotations

import copy
import random
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from dflash.packing import LayoutKind, lay_out, positions_within
from dflash.target import LoadedTarget, Target
from dflash.target_attention import use_varlen, varlen
from dflash.target_body import cut
from dflash.target_shapes import TargetSpec, random_config

seed = 1
std = 0.02  # of all random weights

# Qwen3.5-27B: 48 GatedDeltaNet layers and 16 of full attention.
hybrid_27b = {
    "hidden_size": 5120,
    "intermediate_size": 17408,
    "num_hidden_layers": 64,
    "num_attention_heads": 24,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 48,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "vocab_size": 248320,
}
hybrid_tiny = hybrid_27b | {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "vocab_size": 512,
}


def plain_config(layers: int, *, tiny: bool) -> Any:
    """The Qwen3-8B shape with fewer layers."""
    config = random_config("tiny" if tiny else "qwen3-8b")
    return _with_layers(config, min(layers, config.num_hidden_layers))


def hybrid_config(layers: int, *, tiny: bool) -> Any:
    """The Qwen3.5-27B shape with fewer layers."""
    from transformers import Qwen3_5TextConfig

    config = Qwen3_5TextConfig(**(hybrid_tiny if tiny else hybrid_27b))
    return _with_layers(config, min(layers, config.num_hidden_layers))


def _with_layers(config: Any, layers: int) -> Any:
    config.num_hidden_layers = layers
    config.layer_types = list(config.layer_types)[:layers]
    return config


def build_body(config: Any, device: torch.device, dtype: torch.dtype) -> nn.Module:
    """A transformers decoder with SDPA and random weights, made on the device."""
    from transformers import AutoModel

    with torch.device("meta"):
        body = cast(Any, AutoModel).from_config(config, attn_implementation="sdpa").to(dtype)
    body = body.to_empty(device=device)
    generator = torch.Generator(device).manual_seed(seed)
    with torch.no_grad():
        for parameter in body.parameters():
            if parameter.ndim == 1:
                parameter.fill_(1.0)
            else:
                parameter.normal_(0.0, std, generator=generator)
    # Its buffers hold the rotary frequencies.
    body.rotary_emb = type(body.rotary_emb)(config=config).to(device)
    return cast(nn.Module, body.requires_grad_(False).eval())


def build_target(body: nn.Module, taps: tuple[int, ...], *, attention: str, compile_layers: bool) -> Target:
    """Our target with the weights of a decoder that `build_body` made."""
    device = next(body.parameters()).device
    own = copy.deepcopy(body)
    spec = TargetSpec.of(cast(Any, body.config), "random")
    if attention == varlen and not use_varlen(own):
        raise RuntimeError("transformers does not let this decoder attend through us")
    cut(own, taps[-1] + 1)
    embedding = cast(Any, own).get_input_embeddings().weight
    loaded = LoadedTarget(
        body=own,
        embedding=embedding,
        head=embedding,
        spec=spec,
        taps=taps,
        attention=attention,
        compile=compile_layers,
    )
    return Target(loaded, device)


def mixed_lengths(tokens: int, shortest: int, longest: int) -> list[int]:
    """Lengths spread evenly over the range, about `tokens` in all."""
    rng, lengths = random.Random(seed), list[int]()
    while (left := tokens - sum(lengths)) >= shortest:
        lengths.append(min(rng.randint(shortest, longest), left))
    return lengths


class Documents:
    """Random documents of some lengths, as a target and as a plain decoder are given them."""

    def __init__(self, lengths: list[int], vocab: int) -> None:
        self.lengths = np.array(lengths)
        self.tokens = int(self.lengths.sum())
        generator = torch.Generator().manual_seed(seed)
        self.ids = torch.randint(vocab, (self.tokens,), generator=generator)
        self.padded = lay_out(self.lengths, "padded")
        self._positions = torch.from_numpy(positions_within(self.lengths))
        self._layouts = {kind: lay_out(self.lengths, kind) for kind in ("flat", "padded")}

    def run(self, target: Target, kind: LayoutKind) -> Tensor:
        """The target's taps: [T, F*H]."""
        return target.run(self.ids, self._positions, tuple(self.lengths.tolist()), self._layouts[kind])

    def rows(self, device: torch.device) -> Tensor:
        """Token ids in padded rows: [rows, width]."""
        rows = torch.zeros(self.padded.rows * self.padded.width, dtype=torch.int64)
        rows[self.padded.slots] = self.ids
        return rows.view(self.padded.rows, self.padded.width).to(device)
