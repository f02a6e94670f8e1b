"""The DFlash drafter: fused target states as extra keys and values for a few Qwen3-like layers over blocks.

Owns neither embedding nor head; both are the target's. Parameter names are those of published checkpoints.
Works on packed tokens without a batch dimension. Knows nothing of losses, documents or devices.

Shapes: T context tokens, Q block tokens, F taps, H hidden width, D head width.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from dflash.attention import View, full, sliding
from dflash.contract.errors import ConfigError
from dflash.contract.sections import DrafterConfig
from dflash.seeded_weights import build_seeded
from dflash.target_shapes import TargetSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterSpec:
    """A drafter's shape with everything resolved. Widths in elements."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    taps: tuple[int, ...]
    block_size: int
    layer_types: tuple[str, ...]
    sliding_window: int
    mask_token_id: int
    rope_theta: float
    rms_eps: float
    vocab: int
    max_positions: int
    target_layers: int

    @classmethod
    def of(
        cls, config: DrafterConfig, target: TargetSpec, taps: tuple[int, ...], *, mask_token_id: int
    ) -> DrafterSpec:
        """The drafter that `config` asks for on this target, tapped there. Raises ConfigError."""
        spec = cls(
            hidden=target.hidden,
            layers=config.layers,
            heads=config.heads or target.heads,
            kv_heads=config.kv_heads or target.kv_heads,
            head_dim=config.head_dim or target.head_dim,
            intermediate=config.intermediate or target.intermediate,
            taps=taps,
            block_size=config.block_size,
            layer_types=_layer_types(config, target),
            sliding_window=config.sliding_window,
            mask_token_id=mask_token_id,
            rope_theta=target.rope_theta,
            rms_eps=target.rms_eps,
            vocab=target.vocab,
            max_positions=target.max_positions,
            target_layers=target.layers,
        )
        _check(spec)
        return spec


def _layer_types(config: DrafterConfig, target: TargetSpec) -> tuple[str, ...]:
    chosen = config.layer_types
    if chosen == "auto":
        chosen = "mixed" if target.hybrid else "full"
    if chosen == "mixed":
        return (sliding,) * (config.layers - 1) + (full,)
    return ({"full": full, "sliding": sliding}[chosen],) * config.layers


def _check(spec: DrafterSpec) -> None:
    if spec.heads % spec.kv_heads:
        raise ConfigError(
            "query heads must be a multiple of key/value heads",
            where="drafter.heads, drafter.kv_heads",
            found=f"{spec.heads} and {spec.kv_heads}",
        )
    if spec.head_dim % 2:
        raise ConfigError("the head width must be even", where="drafter.head_dim", found=spec.head_dim)
    if spec.intermediate == 0:
        raise ConfigError(
            "the target has no dense MLP whose width the drafter could take",
            where="drafter.intermediate",
            found=0,
            remedy="set drafter.intermediate",
        )
    if not 0 <= spec.mask_token_id < spec.vocab:
        raise ConfigError(
            "the mask token is not a row of the target's embedding",
            where="drafter.mask_token_id",
            found=spec.mask_token_id,
            expected=f"0 to {spec.vocab - 1}",
        )


class RMSNorm(nn.Module):
    """Root-mean-square norm over the last axis, computed in float32 as Qwen3 does."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))
        self._eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self._eps)
        return self.weight * wide.to(x.dtype)


Rotation = tuple[Tensor, Tensor]  # cosines and sines, [tokens, 1, D]


def _rotation(positions: Tensor, spec: DrafterSpec, dtype: torch.dtype) -> Rotation:
    # Made anew for each batch: as a buffer it would be cast along with the weights.
    even = torch.arange(0, spec.head_dim, 2, dtype=torch.float32, device=positions.device)
    angles = positions.float()[:, None] / spec.rope_theta ** (even / spec.head_dim)
    angles = torch.cat([angles, angles], dim=-1)[:, None]
    return angles.cos().to(dtype), angles.sin().to(dtype)


def _rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """Rotate [tokens, heads, D] by halves (the "neox" layout)."""
    cos, sin = rotation
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


class Attention(nn.Module):
    """Queries from the blocks; keys and values from context and blocks, through the same projections."""

    def __init__(self, spec: DrafterSpec) -> None:
        super().__init__()
        self._head_dim = spec.head_dim
        self.q_proj = nn.Linear(spec.hidden, spec.heads * spec.head_dim, bias=False)
        self.k_proj = nn.Linear(spec.hidden, spec.kv_heads * spec.head_dim, bias=False)
        self.v_proj = nn.Linear(spec.hidden, spec.kv_heads * spec.head_dim, bias=False)
        self.o_proj = nn.Linear(spec.heads * spec.head_dim, spec.hidden, bias=False)
        self.q_norm = RMSNorm(spec.head_dim, spec.rms_eps)
        self.k_norm = RMSNorm(spec.head_dim, spec.rms_eps)

    def forward(
        self, x: Tensor, context: Tensor, rotations: tuple[Rotation, Rotation], view: View, kind: str
    ) -> Tensor:
        """From normed block states `x` [Q, H] and context [T, H]; rotations of context, of blocks."""
        for_context, for_blocks = rotations
        out = view.attend(
            _rotate(self.q_norm(self._heads(self.q_proj(x))), for_blocks),
            _rotate(self.k_norm(self._heads(self.k_proj(context))), for_context),
            self._heads(self.v_proj(context)),
            _rotate(self.k_norm(self._heads(self.k_proj(x))), for_blocks),
            self._heads(self.v_proj(x)),
            kind,
        )
        projected: Tensor = self.o_proj(out.flatten(1))
        return projected

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(len(x), -1, self._head_dim)


class MLP(nn.Module):
    """SwiGLU."""

    def __init__(self, spec: DrafterSpec) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(spec.hidden, spec.intermediate, bias=False)
        self.up_proj = nn.Linear(spec.hidden, spec.intermediate, bias=False)
        self.down_proj = nn.Linear(spec.intermediate, spec.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Layer(nn.Module):
    """Attention and MLP, each behind a norm and around a residual. The context passes neither norm."""

    def __init__(self, spec: DrafterSpec, kind: str) -> None:
        super().__init__()
        self._kind = kind
        self.input_layernorm = RMSNorm(spec.hidden, spec.rms_eps)
        self.self_attn = Attention(spec)
        self.post_attention_layernorm = RMSNorm(spec.hidden, spec.rms_eps)
        self.mlp = MLP(spec)

    def forward(self, x: Tensor, context: Tensor, rotations: tuple[Rotation, Rotation], view: View) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), context, rotations, view, self._kind)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class LayerRunner(Protocol):
    """How a drafter's parts are run: as they are, or compiled (`dflash/compiled_drafter.py`)."""

    checkpointing: bool  # whether a layer keeps its inputs only, and runs again for its gradient

    def fuse(self, drafter: Drafter, features: Tensor) -> Tensor:
        """`drafter.fuse(features)`."""

    def run(
        self, layer: Layer, x: Tensor, context: Tensor, rotations: tuple[Rotation, Rotation], view: View
    ) -> Tensor:
        """`layer(x, context, rotations, view)`."""

    def close(self, norm: RMSNorm, x: Tensor) -> Tensor:
        """`norm(x)`."""


class PlainRunner:
    """Parts as they are. With `checkpointing` a layer keeps its inputs, and runs again for its gradient."""

    def __init__(self, *, checkpointing: bool = False) -> None:
        self.checkpointing = checkpointing

    def fuse(self, drafter: Drafter, features: Tensor) -> Tensor:
        """See LayerRunner."""
        return drafter.fuse(features)

    def run(
        self, layer: Layer, x: Tensor, context: Tensor, rotations: tuple[Rotation, Rotation], view: View
    ) -> Tensor:
        """See LayerRunner."""
        inputs = (layer, x, context, rotations, view)
        out: Tensor = checkpoint(_run, *inputs, **without_states) if self.checkpointing else _run(*inputs)
        return out

    def close(self, norm: RMSNorm, x: Tensor) -> Tensor:
        """See LayerRunner."""
        out: Tensor = norm(x)
        return out


def _run(
    layer: Layer, x: Tensor, context: Tensor, rotations: tuple[Rotation, Rotation], view: View
) -> Tensor:
    out: Tensor = layer(x, context, rotations, view)
    return out


without_states: dict[str, Any] = {
    "use_reentrant": False,
    "preserve_rng_state": False,
}  # nothing is random here


class Drafter(nn.Module):
    """The whole drafter. Parameters only, no buffers: its state dict is what a checkpoint holds."""

    def __init__(self, spec: DrafterSpec, runner: LayerRunner | None = None) -> None:
        super().__init__()
        self.spec = spec
        self.runner = runner or PlainRunner()
        self.fc = nn.Linear(len(spec.taps) * spec.hidden, spec.hidden, bias=False)
        self.hidden_norm = RMSNorm(spec.hidden, spec.rms_eps)
        self.layers = nn.ModuleList(Layer(spec, kind) for kind in spec.layer_types)
        self.norm = RMSNorm(spec.hidden, spec.rms_eps)

    @property
    def dtype(self) -> torch.dtype:
        return self.fc.weight.dtype

    def forward(
        self,
        features: Tensor,
        context_positions: Tensor,
        block_embeddings: Tensor,
        block_positions: Tensor,
        view: View,
        runner: LayerRunner | None = None,
    ) -> Tensor:
        """Final block states, ready for the target's head.

        features [T, F*H] tapped states, ascending layers; context_positions [T]; block_embeddings [Q, H];
        block_positions [Q]. Floating inputs in the drafter's dtype. `runner` instead of its own. Returns
        [Q, H].
        """
        runner = runner or self.runner
        context = runner.fuse(self, view.pad_context(features))
        rotations = (
            _rotation(view.pad_context(context_positions), self.spec, self.dtype),
            _rotation(view.pad_blocks(block_positions), self.spec, self.dtype),
        )
        x = view.pad_blocks(block_embeddings)
        for layer in cast(Iterable[Layer], self.layers):
            x = runner.run(layer, x, context, rotations, view)
        return runner.close(self.norm, x)[: len(block_embeddings)]

    def fuse(self, features: Tensor) -> Tensor:
        """The context that all layers read, [T, H], from tapped states [T, F*H]."""
        context: Tensor = self.hidden_norm(self.fc(features))
        return context


def init_drafter(spec: DrafterSpec, seed: int) -> Drafter:
    """A fresh float32 drafter on the CPU: matrices from normal(0, 0.02), norms one; the same everywhere."""
    return build_seeded(lambda: Drafter(spec), seed=seed, std=0.02, dtype=torch.float32)
