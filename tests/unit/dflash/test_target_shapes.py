import pytest
import torch
from transformers import AutoModel, Qwen3Config

from dflash.contract.errors import ConfigError
from dflash.contract.model_shapes import embedded_vocab_size, random_shapes
from dflash.target_shapes import TargetSpec, random_config


@pytest.mark.parametrize(
    ("shape", "body_parameters"), [("qwen3-1.7b", 1_720_574_976), ("qwen3-8b", 7_568_405_504)]
)
def test_published_shapes_have_the_published_size(shape, body_parameters):
    with torch.device("meta"):
        body = AutoModel.from_config(random_config(shape))
    assert sum(p.numel() for p in body.parameters()) == body_parameters


def test_tiny_holds_the_embedded_vocabulary():
    assert random_config("tiny").vocab_size == embedded_vocab_size


def test_unknown_shape_names_the_nearest():
    with pytest.raises(ConfigError, match="random:qwen3-8b"):
        random_config("qwen-8b")


@pytest.mark.parametrize("shape", random_shapes)
def test_spec_says_what_the_config_says(shape):
    config = random_config(shape)
    spec = TargetSpec.of(config, "x")
    assert (spec.hidden, spec.layers, spec.vocab) == (
        config.hidden_size,
        config.num_hidden_layers,
        config.vocab_size,
    )
    assert spec.rope_theta == 1_000_000.0
    assert spec.attention_kinds == ("full_attention",)
    assert not spec.hybrid


def test_a_hybrid_shape_has_both_kinds_of_layers_and_partial_rotary_positions():
    config = random_config("tiny-hybrid")
    spec = TargetSpec.of(config, "x")
    assert spec.hybrid
    assert spec.attention_kinds == ("full_attention", "linear_attention")
    assert config.layer_types.count("linear_attention") == 6
    assert spec.rope_theta == 10_000_000.0
    rope = AutoModel.from_config(config).rotary_emb
    assert 2 * len(rope.inv_freq) == spec.head_dim // 4


def test_linear_attention_makes_a_target_hybrid():
    from transformers import Qwen3_5TextConfig

    rope = {"rope_type": "default", "rope_theta": 10_000_000.0, "partial_rotary_factor": 0.25}
    spec = TargetSpec.of(Qwen3_5TextConfig(num_hidden_layers=4, rope_parameters=rope), "x")
    assert spec.hybrid
    assert spec.attention_kinds == ("full_attention", "linear_attention")
    assert spec.rope_theta == 10_000_000.0


def test_sliding_layers_are_seen_but_are_not_hybrid():
    config = Qwen3Config(num_hidden_layers=4, use_sliding_window=True, sliding_window=8, max_window_layers=2)
    spec = TargetSpec.of(config, "x")
    assert spec.attention_kinds == ("full_attention", "sliding_attention")
    assert not spec.hybrid
