"""What is known of a target's shape: TargetSpec, and the configuration of `target.model = "random:SHAPE"`.

Knows nothing of weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dflash.contract.errors import ConfigError, nearest
from dflash.contract.model_shapes import hybrid_shapes, random_prefix, random_shapes

if TYPE_CHECKING:
    from transformers import PretrainedConfig


def random_config(shape: str) -> PretrainedConfig:
    """The configuration of a named shape: Qwen3's, or Qwen3.5's for hybrids. Raises ConfigError."""
    from transformers import Qwen3_5TextConfig, Qwen3Config

    if shape in hybrid_shapes:
        return Qwen3_5TextConfig(
            **hybrid_shapes[shape], rms_norm_eps=1e-6, rope_parameters=dict(_hybrid_rope)
        )
    if shape not in random_shapes:
        known = [*random_shapes, *hybrid_shapes]
        near = nearest(shape, known)
        raise ConfigError(
            f"there is no shape called {shape!r}",
            where="target.model",
            found=random_prefix + shape,
            expected="random: and one of " + ", ".join(known),
            remedy=f"did you mean {random_prefix + near!r}?" if near else None,
        )
    rope = {"rope_type": "default", "rope_theta": 1_000_000.0}
    return Qwen3Config(**random_shapes[shape], rms_norm_eps=1e-6, rope_parameters=rope)


# Positions of text, height and width (equal in text) turn a quarter of each head.
_hybrid_rope = {
    "rope_type": "default",
    "rope_theta": 10_000_000.0,
    "partial_rotary_factor": 0.25,
    "mrope_interleaved": True,
    "mrope_section": [2, 1, 1],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetSpec:
    """The shape of a target's text decoder. Widths in elements."""

    name: str  # as the user wrote it: directory, hub name or random:SHAPE
    model_type: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int  # 0: unknown (some mixtures of experts have no dense MLP)
    vocab: int  # rows of the embedding
    max_positions: int
    rope_theta: float
    rms_eps: float
    tied: bool  # head and embedding are one matrix
    attention_kinds: tuple[str, ...]  # the different kinds of layers, sorted

    @property
    def hybrid(self) -> bool:
        """Some layers keep a recurrent state instead of attending."""
        return not set(self.attention_kinds) <= {"full_attention", "sliding_attention", "chunked_attention"}

    @classmethod
    def of(cls, config: PretrainedConfig, name: str) -> TargetSpec:
        """Read from the configuration of the text decoder."""
        heads = config.num_attention_heads
        return cls(
            name=name,
            model_type=config.model_type,
            hidden=config.hidden_size,
            layers=config.num_hidden_layers,
            heads=heads,
            kv_heads=getattr(config, "num_key_value_heads", None) or heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
            intermediate=getattr(config, "intermediate_size", None) or 0,
            vocab=config.vocab_size,
            max_positions=getattr(config, "max_position_embeddings", None) or 32768,
            rope_theta=_rope_theta(config),
            rms_eps=getattr(config, "rms_norm_eps", None) or 1e-6,
            tied=bool(config.tie_word_embeddings),
            attention_kinds=_attention_kinds(config),
        )


def _rope_theta(config: PretrainedConfig) -> float:
    rope = getattr(config, "rope_parameters", None) or {}
    if "full_attention" in rope:  # one table for each kind of layer
        rope = rope["full_attention"]
    return float(rope.get("rope_theta") or getattr(config, "rope_theta", None) or 10000.0)


def _attention_kinds(config: PretrainedConfig) -> tuple[str, ...]:
    kinds = getattr(config, "layer_types", None)
    if kinds:
        return tuple(sorted(set(kinds)))
    windowed = getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True)
    return ("sliding_attention",) if windowed else ("full_attention",)
