"""How many floating-point operations a context token needs in target and drafter: arithmetic over shapes.

One multiplication and addition are two operations. Counted is what the result needs: no padding, nothing
computed twice, nothing behind the last tap, no head of the target. Pointwise work is left out: beside matrix
products it is a few per thousand. Knows nothing of torch, hardware or time.

Symbols: n tokens of a document, A blocks in it of b slots each, H hidden width, V vocabulary.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from dflash.contract.activations import DrafterShape

Stage = Literal["target", "drafter"]
chunk_tokens: Final = 64  # of a recurrent layer: its kernels work through a document in such pieces
master_bytes: Final = 4
moments: Final = 2  # of Adam, float32 each


@dataclass(frozen=True, slots=True, kw_only=True)
class DataShape:
    """Documents as their operations see them: sums over all of them, or over a fair part."""

    tokens: int
    anchors: int  # blocks that are drawn in an epoch
    causal_pairs: int  # of a token and one at or before it in its document: Σ n(n + 1)/2
    windowed_pairs: int  # the same where a target's layer sees so many tokens back at most
    anchor_keys: float  # context tokens that the blocks' first slots see, expected: Σ A × mean position
    windowed_anchor_keys: float  # the same within a drafter's sliding window

    def per_token(self, amount: float) -> float:
        """An amount of all documents, by context token."""
        return amount / self.tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetWork:
    """The layers of a target that run."""

    matrix_weights: int  # elements that each token is multiplied with: of experts only the chosen ones
    query_width: int  # heads × head width
    full_layers: int
    windowed_layers: int
    recurrent_layers: int
    state_heads: int  # of a recurrent layer; 0: there are none
    state_key_width: int
    state_value_width: int
    each_bytes: int  # of a weight


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Operations of one kind, by context token."""

    stage: Stage
    name: str
    per_token: float
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Operations:
    """What training one token of context takes: the entry `operations` of run.json."""

    parts: tuple[Part, ...]
    dtype_bytes: Mapping[str, int]  # of a number in products, by stage
    weight_bytes: Mapping[str, int]  # that a batch reads at least, by stage
    step_bytes: int  # that an optimizer step reads and writes
    state_bytes: int  # of tapped states, by context token

    def per_token(self, stage: Stage) -> float:
        """Operations of a stage by context token."""
        return sum(part.per_token for part in self.parts if part.stage == stage)

    def to_json(self) -> dict[str, Any]:
        """Plain values, ready for strict JSON."""
        return dataclasses.asdict(self)


def count_operations(
    target: TargetWork, drafter: DrafterShape, sliding_layers: int, data: DataShape
) -> Operations:
    """Everything that one token of context takes. `sliding_layers`: of the drafter."""
    head = drafter.vocab * drafter.hidden
    weights = drafter.parameters + head
    return Operations(
        parts=(*_target_parts(target, data), *_drafter_parts(drafter, sliding_layers, data)),
        dtype_bytes={"target": target.each_bytes, "drafter": drafter.each_bytes},
        weight_bytes={
            "target": target.matrix_weights * target.each_bytes,
            "drafter": 2 * weights * drafter.each_bytes,  # forward and backward
        },
        step_bytes=_step_bytes(drafter),
        state_bytes=drafter.taps * drafter.hidden * target.each_bytes,
    )


def _target_parts(target: TargetWork, data: DataShape) -> tuple[Part, ...]:
    width, by_pair = target.query_width, 4 * target.query_width  # scores, and values by their weights
    layers = target.full_layers + target.windowed_layers + target.recurrent_layers
    full = data.per_token(by_pair * target.full_layers * data.causal_pairs)
    windowed = data.per_token(by_pair * target.windowed_layers * data.windowed_pairs)
    key, value = target.state_key_width, target.state_value_width
    states = target.state_heads * (6 * key * value + 4 * chunk_tokens * (key + value))
    parts = (
        ("matrix products", 2.0 * target.matrix_weights, f"2 × weights of {layers} layers"),
        ("attention", full, f"4 × {width} × keys seen, in {target.full_layers} layers"),
        ("windowed attention", windowed, f"4 × {width} × keys seen, in {target.windowed_layers} layers"),
        ("recurrent states", float(target.recurrent_layers * states), f"{target.recurrent_layers} layers"),
    )
    return tuple(Part(stage="target", name=n, per_token=c, why=w) for n, c, w in parts if c)


def _drafter_parts(shape: DrafterShape, sliding_layers: int, data: DataShape) -> tuple[Part, ...]:
    hidden, layers, slots = shape.hidden, shape.layers, shape.block_size * data.anchors
    # States of the target need no gradient, so fusing has two passes; keys and values of the context three.
    fuse = 4.0 * shape.taps * hidden**2
    context = 6.0 * layers * 2 * hidden * shape.key_width
    layer = 2 * hidden * (shape.query_width + shape.key_width) + 3 * hidden * shape.intermediate
    blocks = data.per_token(6.0 * layers * layer * slots)
    head = data.per_token(4.0 * hidden * shape.vocab * slots)  # frozen: no gradient of its weights
    # Backward of attention is five products where forward is two.
    by_pair = 14.0 * shape.query_width
    own = slots * shape.block_size
    full = by_pair * (layers - sliding_layers) * (shape.block_size * data.anchor_keys + own)
    causal = slots * (shape.block_size + 1) / 2  # sliding layers are causal within a block
    slid = by_pair * sliding_layers * (shape.block_size * data.windowed_anchor_keys + causal)
    parts = (
        ("fused context", fuse, f"4 × {shape.taps} taps × {hidden}²"),
        ("keys and values of the context", context, f"6 × weights, in {layers} layers"),
        ("blocks", blocks, f"6 × weights of {layers} layers × {data.per_token(slots):.3g} slots a token"),
        ("head", head, f"4 × {hidden} × {shape.vocab} × {data.per_token(slots):.3g} slots a token"),
        ("attention", data.per_token(full + slid), f"14 × {shape.query_width} × keys seen, in all layers"),
    )
    return tuple(Part(stage="drafter", name=n, per_token=c, why=w) for n, c, w in parts if c)


def _step_bytes(shape: DrafterShape) -> int:
    """Masters and moments are read and written, gradients read; lower precision is written beside masters."""
    each = 2 * master_bytes * (1 + moments) + master_bytes
    return shape.parameters * (each + (shape.each_bytes if shape.each_bytes != master_bytes else 0))
