"""Shapes of target models, read without torch: the named ones of `random:SHAPE`, and those of directories.

Enough for arithmetic about memory before anything is loaded. Weights are counted by formula, which is known
for plain decoders only; what else there is (experts, recurrent layers, models of the hub) is an UnknownShape.
Knows nothing of weights or transformers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

random_prefix: Final = "random:"
embedded_vocab_size: Final = 4096  # of the embedded tokenizer
worth_compiling_hidden: Final = 1024  # narrower models train in less time than they take to compile

# tiny: a forward of 1024 tokens takes 0.1-0.3 s on one core; it has the vocabulary of the embedded tokenizer.
# The others are the published shapes.
random_shapes: dict[str, dict[str, Any]] = {
    "tiny": {
        "hidden_size": 160,
        "num_hidden_layers": 8,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "intermediate_size": 480,
        "vocab_size": embedded_vocab_size,
        "initializer_range": 0.08,  # near hidden**-0.5: logits large enough for drafters to learn
        "tie_word_embeddings": False,
        "max_position_embeddings": 4096,
    },
    "qwen3-1.7b": {
        "hidden_size": 2048,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 6144,
        "vocab_size": 151936,
        "tie_word_embeddings": True,
        "max_position_embeddings": 40960,
    },
    "qwen3-8b": {
        "hidden_size": 4096,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 12288,
        "vocab_size": 151936,
        "tie_word_embeddings": False,
        "max_position_embeddings": 40960,
    },
}
# Qwen3.5's kind of layers: three of GatedDeltaNet, then one of gated attention with partial rotary positions.
hybrid_shapes: dict[str, dict[str, Any]] = {
    "tiny-hybrid": {
        "hidden_size": 96,
        "num_hidden_layers": 8,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "intermediate_size": 192,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "vocab_size": embedded_vocab_size,
        "initializer_range": 0.1,
        "tie_word_embeddings": False,
        "max_position_embeddings": 4096,
    },
}
plain_types: Final = ("qwen3", "qwen2", "llama", "mistral")  # decoders whose weights the formula counts


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A plain decoder. Widths in elements."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    tied: bool  # head and embedding are one matrix
    head_norms: bool = False  # queries and keys are normed by head
    biases: bool = False  # of queries, keys and values
    windowed: bool = False  # layers see a sliding window

    @property
    def embedding_parameters(self) -> int:
        return self.vocab * self.hidden

    @property
    def layer_parameters(self) -> int:
        """Weights of one layer."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        attention = 2 * self.hidden * (queries + keys)
        attention += 2 * self.head_dim * self.head_norms + (queries + 2 * keys) * self.biases
        return attention + 3 * self.hidden * self.intermediate + 2 * self.hidden

    def body_parameters(self, layers: int) -> int:
        """Weights of the embedding and the first layers: what a copy of the target holds."""
        return self.embedding_parameters + layers * self.layer_parameters

    @property
    def loaded_parameters(self) -> int:
        """Weights as they are read: all layers, final norm, embedding and head."""
        heads = 0 if self.tied else self.embedding_parameters
        return self.body_parameters(self.layers) + self.hidden + heads


@dataclass(frozen=True, slots=True)
class UnknownShape:
    """Why a model's shape cannot be told here."""

    reason: str


def read_model_shape(model: str) -> ModelShape | UnknownShape:
    """The shape of `target.model`, from its name or its config.json."""
    if model.startswith(random_prefix):
        shape = model.removeprefix(random_prefix)
        if shape in hybrid_shapes:
            return UnknownShape(f"weights of recurrent layers are counted only once it is loaded ({model})")
        named = random_shapes.get(shape)
        if named is None:
            return UnknownShape(f"there is no shape called {model!r}")
        return _shape({**named, "model_type": "qwen3"}, model)
    path = Path(model) / "config.json"
    if not Path(model).is_dir():
        return UnknownShape(f"{model} is no local directory, so its config.json is not at hand")
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        return UnknownShape(f"{path} cannot be read: {error}")
    if not isinstance(data, dict):
        return UnknownShape(f"{path} is not a model's configuration")
    return _shape(data.get("text_config") or data, str(path))


def _shape(data: Mapping[str, Any], source: str) -> ModelShape | UnknownShape:
    kind = data.get("model_type")
    if kind not in plain_types:
        return UnknownShape(f"weights of model type {kind!r} are counted only once it is loaded ({source})")
    try:
        heads, hidden = int(data["num_attention_heads"]), int(data["hidden_size"])
        return ModelShape(
            hidden=hidden,
            layers=int(data["num_hidden_layers"]),
            heads=heads,
            kv_heads=int(data.get("num_key_value_heads") or heads),
            head_dim=int(data.get("head_dim") or hidden // heads),
            intermediate=int(data["intermediate_size"]),
            vocab=int(data["vocab_size"]),
            tied=bool(data.get("tie_word_embeddings", False)),
            head_norms=kind == "qwen3",
            biases=kind == "qwen2",
            windowed=bool(data.get("sliding_window")) and bool(data.get("use_sliding_window", True)),
        )
    except (KeyError, TypeError, ValueError) as error:
        return UnknownShape(f"{source} does not tell the shape: {error!r}")
