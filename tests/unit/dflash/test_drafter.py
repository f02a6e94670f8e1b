import dataclasses
import random

import pytest
import torch

from dflash.attention import SdpaView, full, sliding
from dflash.contract.errors import ConfigError
from dflash.contract.sections import DrafterConfig
from dflash.drafter import DrafterSpec, init_drafter
from dflash.objective import block_inputs
from dflash.target_shapes import TargetSpec

cpu = torch.device("cpu")

target = TargetSpec(
    name="test",
    model_type="qwen3",
    hidden=24,
    layers=8,
    heads=4,
    kv_heads=2,
    head_dim=6,
    intermediate=32,
    vocab=50,
    max_positions=128,
    rope_theta=10000.0,
    rms_eps=1e-6,
    tied=False,
    attention_kinds=("full_attention",),
)
config = DrafterConfig(layers=3, taps=(1, 5), block_size=4, layer_types="mixed", sliding_window=5)
spec = DrafterSpec.of(config, target, (1, 5), mask_token_id=49)


def make_features(batch):
    generator = torch.Generator().manual_seed(7)
    return torch.randn(batch.tokens, 2 * spec.hidden, generator=generator)


def run(drafter, batch, features):
    """Block states by block, [A, b, H]."""
    embedding = torch.randn(50, spec.hidden, generator=torch.Generator().manual_seed(8))
    ids, positions = block_inputs(batch, spec.mask_token_id)
    view = SdpaView.of(batch, spec, cpu)
    out = drafter(features, batch.positions, embedding[ids], positions, view)
    return out.view(len(batch.anchors), spec.block_size, -1)


def tokens(rng, count):
    return [rng.randrange(49) for _ in range(count)]


def test_zero_knobs_follow_the_target():
    assert (spec.heads, spec.kv_heads, spec.head_dim, spec.intermediate) == (4, 2, 6, 32)
    own = DrafterConfig(heads=8, kv_heads=4, head_dim=12, intermediate=40)
    other = DrafterSpec.of(own, target, (1,), mask_token_id=0)
    assert (other.heads, other.kv_heads, other.head_dim, other.intermediate) == (8, 4, 12, 40)


def test_layer_types_follow_the_target_unless_chosen():
    hybrid = dataclasses.replace(target, attention_kinds=("full_attention", "linear_attention"))

    def types(choice, of):
        return DrafterSpec.of(
            DrafterConfig(layers=3, layer_types=choice), of, (1,), mask_token_id=0
        ).layer_types

    assert types("auto", target) == (full, full, full)
    assert types("auto", hybrid) == types("mixed", target) == (sliding, sliding, full)
    assert types("sliding", target) == (sliding, sliding, sliding)
    assert types("full", hybrid) == (full, full, full)


@pytest.mark.parametrize(
    ("changes", "mask_token_id", "where"),
    [
        ({"heads": 5}, 0, "drafter.heads"),
        ({"head_dim": 7}, 0, "drafter.head_dim"),
        ({}, 50, "drafter.mask_token_id"),
        ({}, -1, "drafter.mask_token_id"),
    ],
)
def test_impossible_shapes_are_refused(changes, mask_token_id, where):
    with pytest.raises(ConfigError, match=where):
        DrafterSpec.of(DrafterConfig(**changes), target, (1,), mask_token_id=mask_token_id)


def test_unknown_mlp_width_must_be_given():
    sparse = dataclasses.replace(target, intermediate=0)
    with pytest.raises(ConfigError, match=r"drafter\.intermediate"):
        DrafterSpec.of(DrafterConfig(), sparse, (1,), mask_token_id=0)
    assert DrafterSpec.of(DrafterConfig(intermediate=8), sparse, (1,), mask_token_id=0).intermediate == 8


def test_has_eleven_tensors_a_layer_and_three_more_with_published_names():
    names = set(init_drafter(spec, 0).state_dict())
    assert len(names) == 11 * 3 + 3
    assert {"fc.weight", "hidden_norm.weight", "norm.weight"} <= names
    assert {n for n in names if n.startswith("layers.2.")} == {
        f"layers.2.{part}.weight"
        for part in (
            "input_layernorm",
            "post_attention_layernorm",
            "self_attn.q_proj",
            "self_attn.k_proj",
            "self_attn.v_proj",
            "self_attn.o_proj",
            "self_attn.q_norm",
            "self_attn.k_norm",
            "mlp.gate_proj",
            "mlp.up_proj",
            "mlp.down_proj",
        )
    }


@pytest.mark.parametrize(
    ("shape", "parameters"),
    [
        ((2560, 36, 9728), 537_427_200),  # Qwen3-4B
        ((4096, 36, 12288), 1_048_626_432),  # Qwen3-8B
        ((5120, 64, 17408), 1_730_213_120),  # Qwen3.6-27B
    ],
)
def test_parameter_counts_are_those_of_published_drafters(shape, parameters):
    hidden, layers, intermediate = shape
    size = dataclasses.replace(target, hidden=hidden, layers=layers, intermediate=intermediate)
    own = DrafterConfig(heads=32, kv_heads=8, head_dim=128)
    from dflash.drafter import Drafter

    with torch.device("meta"):
        drafter = Drafter(DrafterSpec.of(own, size, (1, 9, 17, 25, 33), mask_token_id=0))
    assert sum(p.numel() for p in drafter.parameters()) == parameters


def test_initial_weights_depend_on_the_seed_only():
    state, first = torch.get_rng_state(), init_drafter(spec, 3).state_dict()
    torch.manual_seed(99)
    again, other = init_drafter(spec, 3).state_dict(), init_drafter(spec, 4).state_dict()
    torch.set_rng_state(state)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["fc.weight"], other["fc.weight"])


@pytest.mark.parametrize("seed", range(5))
def test_states_at_or_past_a_position_never_reach_blocks_anchored_at_or_before_it(seed, make_batch):
    """Random anchors at any spacing, overlapping blocks too: the loss must not be too good."""
    rng = random.Random(seed)
    length = 30
    anchors = sorted(rng.sample(range(length), 8))
    batch = make_batch([tokens(rng, length)], [anchors], spec.block_size)
    drafter, features = init_drafter(spec, seed), make_features(batch)
    with torch.no_grad():
        before = run(drafter, batch, features)
        for position in range(length):
            changed = features.clone()
            changed[position:] += 5.0
            after = run(drafter, batch, changed)
            for block, anchor in enumerate(anchors):
                if anchor <= position:
                    assert torch.equal(before[block], after[block])
                else:
                    assert not torch.equal(before[block], after[block])


def test_gradient_of_a_block_reaches_exactly_the_states_before_its_anchor(make_batch):
    rng = random.Random(0)
    batch = make_batch([tokens(rng, 20)], [[4, 6, 11]], spec.block_size)
    features = make_features(batch).requires_grad_()
    out = run(init_drafter(spec, 0), batch, features)
    for block, anchor in enumerate([4, 6, 11]):
        (gradient,) = torch.autograd.grad(out[block].square().sum(), features, retain_graph=True)
        reached = gradient.abs().sum(1) > 0
        assert reached.tolist() == [position < anchor for position in range(20)]


def test_nothing_leaks_between_packed_documents(make_batch):
    """Change document A in every way; the blocks of B and C stay bit for bit."""
    rng = random.Random(1)
    b, c = tokens(rng, 17), tokens(rng, 11)
    anchors = [[0, 3, 4, 12], [1, 2, 9, 16], [5, 10]]
    drafter = init_drafter(spec, 0)
    first = make_batch([tokens(rng, 13), b, c], anchors, spec.block_size)
    second = make_batch([tokens(rng, 13), b, c], anchors, spec.block_size)
    features, changed = make_features(first), make_features(first)
    changed[:13] = torch.randn(13, changed.shape[1])
    with torch.no_grad():
        before, after = run(drafter, first, features), run(drafter, second, changed)
    assert torch.equal(before[4:], after[4:])
    assert not torch.equal(before[1], after[1])


def test_packed_documents_come_out_as_they_do_alone(make_batch):
    rng = random.Random(2)
    documents = [tokens(rng, n) for n in (14, 22, 9)]
    anchors = [[2, 7], [1, 5, 6, 20], [3]]
    drafter = init_drafter(spec, 0)
    batch = make_batch(documents, anchors, spec.block_size)
    features = make_features(batch)
    with torch.no_grad():
        together = run(drafter, batch, features).split([2, 4, 1])
        parts = zip(documents, anchors, features.split([14, 22, 9]), together, strict=True)
        for document, own, states, packed in parts:
            alone = run(drafter, make_batch([document], [own], spec.block_size), states)
            torch.testing.assert_close(packed, alone, rtol=1e-5, atol=1e-5)


def test_shifting_all_positions_changes_nothing_shifting_only_blocks_does(make_batch):
    batch = make_batch([list(range(20))], [[6, 13]], spec.block_size)
    drafter, features = init_drafter(spec, 0), make_features(batch)
    embedding = torch.randn(50, spec.hidden, generator=torch.Generator().manual_seed(8))
    ids, positions = block_inputs(batch, spec.mask_token_id)
    view = SdpaView.of(batch, spec, cpu)

    def out(context_shift, block_shift):
        with torch.no_grad():
            return drafter(
                features,
                batch.positions + context_shift,
                embedding[ids],
                positions + block_shift,
                view,
            )

    torch.testing.assert_close(out(0, 0), out(1, 1), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(out(0, 0), out(0, 1), rtol=1e-3, atol=1e-3)


def test_bfloat16_stays_near_float32(make_batch):
    batch = make_batch([list(range(30))], [[3, 9, 20]], spec.block_size)
    features = make_features(batch)
    with torch.no_grad():
        exact = run(init_drafter(spec, 0), batch, features)
        drafter = init_drafter(spec, 0).to(torch.bfloat16)
        embedding = torch.randn(50, spec.hidden, generator=torch.Generator().manual_seed(8)).bfloat16()
        ids, positions = block_inputs(batch, spec.mask_token_id)
        view = SdpaView.of(batch, spec, cpu)
        rough = drafter(features.bfloat16(), batch.positions, embedding[ids], positions, view)
    assert rough.dtype == torch.bfloat16
    error = (rough.float() - exact.flatten(0, 1)).norm() / exact.norm()
    assert error < 0.03
