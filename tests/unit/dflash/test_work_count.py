"""What a prepared run asks of its devices, against counts by hand."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModel, Qwen3_5TextConfig

from dflash.anchors import draw_anchors
from dflash.contract.activations import DrafterShape, TargetShape
from dflash.contract.config import load_config
from dflash.contract.operations import DataShape, count_operations
from dflash.data.documents import Document
from dflash.target_shapes import random_config
from dflash.trainer import prepare
from dflash.work_count import count_work, shape_data, shape_target

shape = TargetShape(
    hidden=4, layers=2, heads=2, kv_heads=1, head_dim=3, inner=5, vocab=7, tied=False, body_parameters=0,
    loaded_parameters=0, each_bytes=2,
)  # fmt: skip

drafter = DrafterShape(
    hidden=4, layers=1, heads=2, kv_heads=1, head_dim=2, intermediate=5, taps=1, block_size=2, kinds=1,
    vocab=7, each_bytes=2,
)  # fmt: skip


def document(length: int, supervised: slice) -> Document:
    mask = np.zeros(length, np.bool_)
    mask[supervised] = True
    return Document(ids=np.zeros(length, np.int32), loss_mask=mask, file="f", line=1)


def data_of(items: tuple[Document, ...], **changes: Any) -> Any:
    known = {"limit": 2, "block_size": 2, "target_window": 0, "drafter_window": 1000}
    return shape_data(items, **{**known, **changes})


def test_sums_over_documents_by_hand() -> None:
    items = (document(4, slice(1, 4)), document(6, slice(0, 6)))  # candidates 1, 2 and 0 to 4
    found = data_of(items, target_window=2)
    assert (found.tokens, found.anchors) == (10, 4)
    assert found.causal_pairs == 10 + 21
    assert found.windowed_pairs == 7 + 11
    assert found.anchor_keys == pytest.approx(2 * 1.5 + 2 * 2.0)
    assert data_of(items, drafter_window=3).windowed_anchor_keys == pytest.approx(2 * 1.25 + 2 * 1.1)


def test_expected_positions_are_those_of_the_draw() -> None:
    item = document(200, slice(50, 200))
    drawn = [
        draw_anchors(item.loss_mask, seed=0, epoch=epoch, document=0, limit=20).sum() for epoch in range(400)
    ]
    assert data_of((item,), limit=20).anchor_keys == pytest.approx(np.mean(drawn), rel=0.01)


def test_a_target_that_sees_a_window_shorter_than_no_document_sees_all() -> None:
    found = data_of((document(4, slice(0, 4)),), target_window=100)
    assert found.windowed_pairs == found.causal_pairs == 10


def test_of_experts_only_the_chosen_ones_count() -> None:
    weights = [
        ("embed_tokens.weight", torch.empty(7, 4)),
        ("layers.0.self_attn.q_proj.weight", torch.empty(6, 4)),
        ("layers.0.mlp.experts.gate_up_proj", torch.empty(8, 4, 10)),
        ("layers.0.mlp.gate.weight", torch.empty(8, 4)),
        ("layers.0.input_layernorm.weight", torch.empty(4)),
    ]
    model: Any = SimpleNamespace(num_experts=8, num_experts_per_tok=2)
    work = shape_target(weights, model, shape)
    assert work.matrix_weights == 24 + 2 * 40 + 32
    assert (work.full_layers, work.windowed_layers, work.recurrent_layers) == (2, 0, 0)


def test_kinds_of_layers_are_counted_up_to_the_last_tap() -> None:
    model: Any = SimpleNamespace(
        layer_types=["linear_attention", "full_attention", "linear_attention"],
        linear_num_value_heads=6,
        linear_key_head_dim=8,
        linear_value_head_dim=16,
    )
    work = shape_target([], model, shape)
    assert (work.full_layers, work.recurrent_layers) == (1, 1)
    assert (work.state_heads, work.state_key_width, work.state_value_width) == (6, 8, 16)


def test_a_prepared_run_is_counted_as_its_shapes_say() -> None:
    trainer = prepare(load_config(None, ["run.max_steps=1"]))
    found, hidden, layers = count_work(trainer), 160, trainer.memory.facts.target.layers
    weights = hidden * (128 + 64 + 64) + 128 * hidden + 3 * hidden * 480
    products = next(p.per_token for p in found.parts if (p.stage, p.name) == ("target", "matrix products"))
    assert products == 2 * layers * weights
    assert found.state_bytes == len(trainer.group.leader.drafter.spec.taps) * hidden * 4
    assert found.per_token("drafter") > 0


def test_published_targets_take_what_is_published_of_them() -> None:
    """GFLOP a token at 2,048 tokens a document: 14.50 of Qwen3-8B, 49.49 of the hybrid 27B."""
    length = 2048
    pairs = length * (length + 1) // 2
    data = DataShape(
        tokens=length, anchors=0, causal_pairs=pairs, windowed_pairs=0, anchor_keys=0, windowed_anchor_keys=0
    )
    hybrid = Qwen3_5TextConfig(
        hidden_size=5120, num_hidden_layers=64, intermediate_size=17408, num_attention_heads=24,
        num_key_value_heads=4, head_dim=256, linear_num_key_heads=16, linear_num_value_heads=48,
        linear_key_head_dim=128, linear_value_head_dim=128, linear_conv_kernel_dim=4,
    )  # fmt: skip
    for model, gflop in ((random_config("qwen3-8b"), 14.50), (hybrid, 49.49)):
        with torch.device("meta"):
            body: Any = AutoModel.from_config(model)  # type: ignore[no-untyped-call]
        widths = {
            "layers": model.num_hidden_layers,
            "heads": model.num_attention_heads,
            "head_dim": model.head_dim,
        }
        work = shape_target(body.named_parameters(), model, replace(shape, **widths))
        found = count_operations(work, drafter, 0, data)
        assert found.per_token("target") / 1e9 == pytest.approx(gflop, abs=0.01)
