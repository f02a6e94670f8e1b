"""config.json of a drafter: as published loaders read it, and read again from ours and from theirs."""

import dataclasses
import json
from pathlib import Path

import pytest

from dflash.attention import full, sliding
from dflash.contract.errors import CheckpointError
from dflash.drafter_config import drafter_config, read_spec
from tests.small_drafters import golden_spec

golden = Path(__file__).parents[2] / "data" / "golden"

spec = dataclasses.replace(golden_spec, sliding_window=1)  # as who reads a full one finds
mixed = dataclasses.replace(spec, layer_types=(sliding, sliding, full), sliding_window=6)


def test_config_equals_the_one_published_loaders_read():
    published = json.loads((golden / "handwritten_config.json").read_text())
    assert drafter_config(spec, "float32") == published


def test_sliding_layers_write_window_and_switch():
    written = drafter_config(mixed, "bfloat16")
    assert written["layer_types"] == [sliding, sliding, full]
    assert (written["use_sliding_window"], written["sliding_window"]) == (True, 6)


def test_transformers_reads_the_config_as_meant():
    from transformers import Qwen3Config

    read = Qwen3Config(**drafter_config(mixed, "float32"))
    assert read.rope_parameters["rope_theta"] == 1_000_000.0
    assert read.sliding_window == 6
    assert read.layer_types == [sliding, sliding, full]


def read(tmp_path, **changes):
    config = {**drafter_config(mixed, "float32"), **changes}
    path = tmp_path / "config.json"
    path.write_text(json.dumps({key: value for key, value in config.items() if value != "left out"}))
    return read_spec(path)


@pytest.mark.parametrize("of", [spec, mixed])
def test_a_spec_is_read_back_as_it_was(of, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(drafter_config(of, "bfloat16")))
    assert read_spec(path) == of


def test_a_config_that_another_trainer_wrote_is_read():
    """SpecForge 0.2.0: theta stands in rope_parameters alone."""
    read = read_spec(golden / "tiny_drafter" / "config.json")
    assert read == dataclasses.replace(mixed, rope_theta=10000.0)


def test_what_stands_inside_goes_before_what_stands_at_the_top(tmp_path):
    inside = {"mask_token_id": 95, "target_layer_ids": [0, 2], "block_size": 8}
    found = read(tmp_path, dflash_config=inside)
    assert (found.mask_token_id, found.taps, found.block_size) == (95, (0, 2), 8)
    at_the_top = read(tmp_path, dflash_config="left out", mask_token_id=94, target_layer_ids=[1])
    assert (at_the_top.mask_token_id, at_the_top.taps, at_the_top.block_size) == (94, (1,), 4)


def test_without_layer_types_it_is_as_transformers_has_it(tmp_path):
    from transformers import Qwen3Config

    for changes in ({"use_sliding_window": False}, {"use_sliding_window": True, "max_window_layers": 1}):
        found = read(tmp_path, layer_types="left out", **changes)
        theirs = Qwen3Config(**{**drafter_config(mixed, "float32"), "layer_types": None, **changes})
        assert list(found.layer_types) == theirs.layer_types


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"architectures": ["Qwen3ForCausalLM"]}, "no DFlash drafter"),
        ({"architectures": ["DFlash2DraftModel"]}, "no DFlash drafter"),
        ({"architectures": "left out"}, "no DFlash drafter"),
        ({"is_causal": True}, "wants is_causal"),
        ({"final_logit_softcapping": 30.0}, "wants final_logit_softcapping"),
        ({"input_embedding_scale": 2.0}, "wants input_embedding_scale"),
        ({"attention_bias": True}, "wants attention_bias"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6}}, "yarn"),
        ({"block_size": "left out"}, "no block_size"),
        ({"dflash_config": {"mask_token_id": 1}}, "no target_layer_ids"),
        ({"hidden_size": None}, "makes no sense"),
        ({"layer_types": ["chunked_attention"] * 3}, "chunked_attention"),
        ({"layer_types": [full]}, "of 3 layers"),
        ({"sliding_window": None}, "without sliding_window"),
    ],
)
def test_what_cannot_be_run_here_is_refused_by_name(changes, told, tmp_path):
    with pytest.raises(CheckpointError, match=told) as caught:
        read(tmp_path, **changes)
    assert str(tmp_path) in caught.value.where


def test_what_changes_nothing_is_let_through(tmp_path):
    assert read(tmp_path, input_embedding_scale=1.0, final_logit_softcapping=None) == mixed
