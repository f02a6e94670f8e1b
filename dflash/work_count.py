"""What a prepared run asks of its devices: shapes for `dflash/contract/operations.py`, off models and data.

Weights are counted as they are loaded, so that layers of any kind count for what they multiply. Knows nothing
of devices or time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
from torch import Tensor

from dflash.anchors import anchor_candidates
from dflash.attention import sliding
from dflash.contract.activations import TargetShape
from dflash.contract.operations import DataShape, Operations, TargetWork, count_operations
from dflash.data.documents import Document
from dflash.target_body import recurrent_kinds
from dflash.trainer import Trainer

if TYPE_CHECKING:
    from transformers import PretrainedConfig

most_documents: Final = 5000  # looked at, evenly over all
windowed_kinds: Final = ("sliding_attention", "chunked_attention")


def count_work(trainer: Trainer) -> Operations:
    """Operations by token of a trainer's models on its documents."""
    config, facts, target = trainer.config, trainer.memory.facts, trainer.targets[0]
    model = cast("PretrainedConfig", target.body.config)
    drafter = trainer.group.leader.drafter.spec
    data = shape_data(
        trainer.documents.items,
        limit=config.objective.anchors_per_document,
        block_size=drafter.block_size,
        target_window=_number(model, "sliding_window") or _number(model, "attention_chunk_size"),
        drafter_window=drafter.sliding_window,
    )
    work = shape_target(target.body.named_parameters(), model, facts.target)
    sliding_layers = sum(kind == sliding for kind in drafter.layer_types)
    return count_operations(work, facts.drafter, sliding_layers, data)


def shape_target(
    weights: Iterable[tuple[str, Tensor]], model: PretrainedConfig, shape: TargetShape
) -> TargetWork:
    """The work of a token in layers with these named weights; `model`: their configuration."""
    kinds = _kinds(model, shape.layers)
    recurrent = sum(kind in recurrent_kinds for kind in kinds)
    windowed = sum(kind in windowed_kinds for kind in kinds)
    return TargetWork(
        matrix_weights=round(sum(_multiplied(name, weight, model) for name, weight in weights)),
        query_width=shape.heads * shape.head_dim,
        full_layers=shape.layers - windowed - recurrent,
        windowed_layers=windowed,
        recurrent_layers=recurrent,
        state_heads=_number(model, "linear_num_value_heads") if recurrent else 0,
        state_key_width=_number(model, "linear_key_head_dim") if recurrent else 0,
        state_value_width=_number(model, "linear_value_head_dim") if recurrent else 0,
        each_bytes=shape.each_bytes,
    )


def _kinds(model: PretrainedConfig, layers: int) -> list[str]:
    kinds: list[str] | None = getattr(model, "layer_types", None)
    if kinds:
        return list(kinds)[:layers]
    windowed = getattr(model, "sliding_window", None) and getattr(model, "use_sliding_window", True)
    return ["sliding_attention" if windowed else "full_attention"] * layers


def _multiplied(name: str, weight: Tensor, model: PretrainedConfig) -> float:
    """Elements that a token is multiplied with: none of an embedding, of experts those of the chosen."""
    if weight.ndim < 2 or "embed" in name:
        return 0.0
    everyone = _number(model, "num_experts") or _number(model, "num_local_experts")
    chosen = _number(model, "num_experts_per_tok")
    part = chosen / everyone if everyone and chosen and ".experts." in f".{name}." else 1.0
    return part * weight.numel()


def _number(model: Any, name: str) -> int:
    return int(getattr(model, name, None) or 0)


def shape_data(
    items: Sequence[Document], *, limit: int, block_size: int, target_window: int, drafter_window: int
) -> DataShape:
    """Sums over the documents, at most `most_documents` of them. `target_window` 0: none is used."""
    chosen = items[:: max(-(-len(items) // most_documents), 1)]
    lengths = np.array([len(item.ids) for item in chosen], dtype=np.int64)
    reach = np.minimum(lengths, target_window) if target_window else lengths
    # The first `reach` tokens see all before them, the others so many.
    windowed = reach * (reach + 1) // 2 + (lengths - reach) * reach
    back = max(drafter_window - (block_size + 1) / 2, 0.0)  # what the middle slot of a block sees before it
    anchors, keys, near = 0, 0.0, 0.0
    for item in chosen:
        candidates = anchor_candidates(item.loss_mask)
        drawn = min(limit, len(candidates))
        if drawn:
            anchors += drawn
            keys += drawn * float(candidates.mean())
            near += drawn * float(np.minimum(candidates, back).mean())
    return DataShape(
        tokens=int(lengths.sum()),
        anchors=anchors,
        causal_pairs=int((lengths * (lengths + 1) // 2).sum()),
        windowed_pairs=int(windowed.sum()),
        anchor_keys=keys,
        windowed_anchor_keys=near,
    )
