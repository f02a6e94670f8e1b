"""Shapes read without torch are those that the trainer counts."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from dflash.contract.model_shapes import ModelShape, UnknownShape, random_shapes, read_model_shape
from dflash.target_body import cut
from dflash.target_shapes import random_config

common = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 128,
}


def counted(config, layers):
    """Weights of embedding and first layers, and of everything, as transformers builds them."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    everything = sum(p.numel() for p in model.parameters())
    body = model.get_decoder()
    cut(body, layers)
    return sum(p.numel() for p in body.parameters()), everything


@pytest.mark.parametrize("name", random_shapes)
def test_named_shapes_count_as_built(name):
    shape = read_model_shape(f"random:{name}")
    assert isinstance(shape, ModelShape)
    assert (shape.body_parameters(3), shape.loaded_parameters) == counted(random_config(name), 3)


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("qwen3", {"head_dim": 32}),
        ("qwen2", {}),
        ("llama", {}),
        ("mistral", {"head_dim": 8, "sliding_window": None}),
    ],
)
@pytest.mark.parametrize("tied", [False, True])
def test_directories_count_as_built(tmp_path, kind, more, tied):
    AutoConfig.for_model(kind, **common, **more, tie_word_embeddings=tied).save_pretrained(tmp_path)
    shape = read_model_shape(str(tmp_path))
    assert isinstance(shape, ModelShape)
    built = counted(AutoConfig.from_pretrained(tmp_path), 2)
    assert (shape.body_parameters(2), shape.loaded_parameters) == built


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (json.dumps({**common, "model_type": "qwen3_moe"}), "'qwen3_moe'"),
        (json.dumps({"text_config": {**common, "model_type": "qwen3_5_text"}}), "'qwen3_5_text'"),
        (json.dumps({"model_type": "llama"}), "num_attention_heads"),
        ("{", "cannot be read"),
        ("[]", "not a model's"),
    ],
)
def test_what_cannot_be_counted_says_why(tmp_path, text, reason):
    (tmp_path / "config.json").write_text(text)
    found = read_model_shape(str(tmp_path))
    assert isinstance(found, UnknownShape)
    assert reason in found.reason


@pytest.mark.parametrize("name", ["Qwen/Qwen3-8B", "random:huge"])
def test_models_that_are_not_here_say_so(name):
    found = read_model_shape(name)
    assert isinstance(found, UnknownShape)
    assert name in found.reason
