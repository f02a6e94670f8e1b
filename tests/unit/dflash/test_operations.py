"""Operations of a token against counts by hand and published figures."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from dflash.contract.activations import DrafterShape
from dflash.contract.operations import DataShape, Operations, TargetWork, count_operations
from profiler.records import decode

two_documents = DataShape(
    tokens=10,  # 4 and 6
    anchors=3,  # 1 at position 1, 2 at 2 and 4
    causal_pairs=10 + 21,
    windowed_pairs=7 + 11,  # 2 back: 1+2+2+2 and 1+2+2+2+2+2
    anchor_keys=7.0,
    windowed_anchor_keys=3.0,
)
small_target = TargetWork(
    matrix_weights=100,
    query_width=8,
    full_layers=2,
    windowed_layers=1,
    recurrent_layers=0,
    state_heads=0,
    state_key_width=0,
    state_value_width=0,
    each_bytes=2,
)
small_drafter = DrafterShape(
    hidden=4, layers=2, heads=2, kv_heads=1, head_dim=3, intermediate=5, taps=2, block_size=2, kinds=1,
    vocab=7, each_bytes=2,
)  # fmt: skip
qwen3_8b = DrafterShape(
    hidden=4096, layers=5, heads=32, kv_heads=8, head_dim=128, intermediate=12288, taps=5, block_size=16,
    kinds=1, vocab=151936, each_bytes=2,
)  # fmt: skip


def part(operations: Operations, stage: str, name: str) -> float:
    return next((p.per_token for p in operations.parts if (p.stage, p.name) == (stage, name)), 0.0)


def test_a_targets_token_by_hand() -> None:
    found = count_operations(small_target, small_drafter, 0, two_documents)
    assert part(found, "target", "matrix products") == 200
    assert part(found, "target", "attention") == pytest.approx(4 * 8 * 2 * 31 / 10)
    assert part(found, "target", "windowed attention") == pytest.approx(4 * 8 * 1 * 18 / 10)
    assert part(found, "target", "recurrent states") == 0
    assert found.per_token("target") == pytest.approx(200 + 198.4 + 57.6)


def test_recurrent_layers_add_their_states() -> None:
    gated = replace(small_target, recurrent_layers=3, state_heads=2, state_key_width=4, state_value_width=5)
    found = count_operations(gated, small_drafter, 0, two_documents)
    assert part(found, "target", "recurrent states") == 3 * 2 * (6 * 4 * 5 + 4 * 64 * (4 + 5))


def test_a_drafters_token_by_hand() -> None:
    found = count_operations(small_target, small_drafter, 0, two_documents)
    assert part(found, "drafter", "fused context") == 4 * 2 * 4 * 4
    assert part(found, "drafter", "keys and values of the context") == 3 * (2 * 2 * 2 * 4 * 3)
    weights = 4 * 6 + 4 * 3 + 4 * 3 + 6 * 4 + 3 * 4 * 5  # queries, keys, values, output, MLP
    assert part(found, "drafter", "blocks") == pytest.approx(3 * 2 * 2 * weights * 6 / 10)
    assert part(found, "drafter", "head") == pytest.approx(2 * 2 * 4 * 7 * 6 / 10)
    # Each of 2 slots of a block sees what its anchor sees, and both slots.
    keys = 2 * 7 + 6 * 2
    assert part(found, "drafter", "attention") == pytest.approx(3.5 * 4 * 6 * 2 * keys / 10)


def test_sliding_layers_see_less() -> None:
    found = count_operations(small_target, small_drafter, 2, two_documents)
    keys = 2 * 3 + 6 * 1.5
    assert part(found, "drafter", "attention") == pytest.approx(3.5 * 4 * 6 * 2 * keys / 10)


def test_the_published_accounting_of_an_8b_drafter() -> None:
    """Of 4 slots a token: 252 and 336 MFLOP of context, 8.28 GFLOP a slot."""
    data = replace(two_documents, tokens=2048, anchors=512, anchor_keys=0.0)
    found = count_operations(small_target, qwen3_8b, 0, data)
    context = [part(found, "drafter", n) for n in ("fused context", "keys and values of the context")]
    assert sum(context) == pytest.approx((251.7 + 335.5) * 1e6, rel=1e-3)
    slots = [part(found, "drafter", n) for n in ("blocks", "head")]
    assert sum(slots) / 4 == pytest.approx(8.28e9, rel=1e-3)
    own = 14 * 4096 * 5 * 512 * 16 * 16 / 2048
    assert part(found, "drafter", "attention") == pytest.approx(own)


def test_bytes_that_a_batch_and_a_step_need() -> None:
    found = count_operations(small_target, small_drafter, 0, two_documents)
    weights = small_drafter.parameters
    assert found.weight_bytes == {"target": 200, "drafter": 2 * 2 * (weights + 28)}
    assert found.state_bytes == 2 * 4 * 2
    assert found.step_bytes == 30 * weights  # 3 float32 both ways, gradients, bfloat16 weights
    alone = count_operations(small_target, replace(small_drafter, each_bytes=4), 0, two_documents)
    assert alone.step_bytes == 28 * weights


def test_the_entry_of_a_manifest_is_read_back() -> None:
    found = count_operations(small_target, small_drafter, 0, two_documents)
    assert decode(Operations, json.loads(json.dumps(found.to_json()))) == found
