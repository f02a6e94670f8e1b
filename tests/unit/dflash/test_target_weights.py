from importlib.util import find_spec

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    Qwen3_5Config,
    Qwen3_5ForConditionalGeneration,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from dflash.contract.errors import ConfigError, DeviceError
from dflash.target_weights import read_target

small = {
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 48,
    "vocab_size": 60,
}


def read(name, **changes):
    return read_target(str(name), **{"seed": 0, "dtype": torch.float32, "attention": "sdpa", **changes})


@pytest.fixture
def qwen3_dir(tmp_path):
    torch.manual_seed(0)
    Qwen3ForCausalLM(Qwen3Config(**small, tie_word_embeddings=False)).save_pretrained(tmp_path)
    return tmp_path


def test_seeded_weights_are_the_same_every_time_and_leave_the_global_generator_alone():
    before = torch.get_rng_state()
    first, again, other = read("random:tiny"), read("random:tiny"), read("random:tiny", seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    state = first.body.state_dict()
    assert all(torch.equal(state[n], t) for n, t in again.body.state_dict().items())
    assert torch.equal(first.head, again.head)
    assert not torch.equal(first.head, other.head)
    assert not torch.equal(first.head, first.embedding)


def test_seeded_bodies_compute_with_true_rotary_frequencies():
    weights = read("random:tiny", dtype=torch.bfloat16)
    expected = 1_000_000.0 ** (-torch.arange(0, 32, 2) / 32)
    torch.testing.assert_close(weights.body.rotary_emb.inv_freq, expected)


def test_directory_gives_body_embedding_and_head(qwen3_dir):
    weights = read(qwen3_dir)
    whole = AutoModelForCausalLM.from_pretrained(qwen3_dir)
    assert torch.equal(weights.head, whole.lm_head.weight)
    assert torch.equal(weights.embedding, whole.model.embed_tokens.weight)
    assert not any("lm_head" in name for name, _ in weights.body.named_parameters())
    assert weights.config.num_hidden_layers == 4


def test_tied_head_is_the_embedding_itself(tmp_path):
    Qwen3ForCausalLM(Qwen3Config(**small, tie_word_embeddings=True)).save_pretrained(tmp_path)
    weights = read(tmp_path)
    assert weights.head is weights.embedding


def test_text_decoder_nested_in_a_vision_model_is_found(tmp_path):
    linear = {
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
    }
    vision = {
        "hidden_size": 16,
        "depth": 1,
        "num_heads": 2,
        "intermediate_size": 16,
        "out_hidden_size": 32,
        "num_position_embeddings": 16,
    }
    config = Qwen3_5Config(text_config={**small, **linear}, vision_config=vision)
    Qwen3_5ForConditionalGeneration(config).save_pretrained(tmp_path)
    assert hasattr(AutoConfig.from_pretrained(tmp_path), "text_config")
    weights = read(tmp_path)
    assert weights.embedding.shape == (60, 32)
    assert len(weights.body.layers) == weights.config.num_hidden_layers == 4
    assert "linear_attention" in weights.config.layer_types


@pytest.mark.parametrize("name", ["./nowhere", "/nowhere/at/all", "~/nowhere/at/all", "a/b/c"])
def test_missing_directory_is_said_to_be_missing(name):
    with pytest.raises(ConfigError, match="no such model directory") as caught:
        read(name)
    assert caught.value.where == "target.model"
    assert caught.value.exit_code == 2


def test_hub_name_without_network_says_what_to_do():
    with pytest.raises(ConfigError, match="without network") as caught:
        read("nobody/no-such-model")
    assert caught.value.found == "nobody/no-such-model"


def test_empty_directory_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="cannot be loaded"):
        read(tmp_path)


def test_cut_off_weights_are_refused(qwen3_dir):
    path = qwen3_dir / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ConfigError, match="cannot be loaded"):
        read(qwen3_dir)


@pytest.fixture
def shards(qwen3_dir):
    model = AutoModelForCausalLM.from_pretrained(qwen3_dir)
    (qwen3_dir / "model.safetensors").unlink()
    model.save_pretrained(qwen3_dir, max_shard_size="20KB")
    return sorted(qwen3_dir.glob("model-*.safetensors"))


def test_sharded_weights_are_those_of_one_file(qwen3_dir, shards):
    assert len(shards) > 2
    torch.manual_seed(0)
    whole = Qwen3ForCausalLM(Qwen3Config(**small, tie_word_embeddings=False))
    weights = read(qwen3_dir)
    assert torch.equal(weights.head, whole.lm_head.weight)
    state = whole.model.state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in weights.body.state_dict().items())


def test_a_missing_shard_is_told_by_name(qwen3_dir, shards):
    shards[1].unlink()
    with pytest.raises(ConfigError, match=shards[1].name):
        read(qwen3_dir)


def test_a_weight_that_no_shard_holds_is_refused_not_made_up(qwen3_dir, shards):
    tensors = load_file(shards[-1])
    lost = sorted(tensors)[0]
    del tensors[lost]
    save_file(tensors, shards[-1], {"format": "pt"})
    with pytest.raises(ConfigError, match="lacks weights") as caught:
        read(qwen3_dir)
    assert lost in caught.value.found


def test_seeded_hybrids_keep_states_through_documents():
    """Vectors are as training would start from: no doubled norms, heads that forget at spread rates."""
    body = read("random:tiny-hybrid").body
    ids = torch.arange(120)[None] * 7 % 4096
    other = ids.clone()
    other[0, 0] += 1
    with torch.no_grad():
        before, after = (body(input_ids=x).last_hidden_state for x in (ids, other))
    assert float(before.std()) < 2
    assert float((before[0, -1] - after[0, -1]).norm() / before[0, -1].norm()) > 1e-3


@pytest.mark.skipif(find_spec("flash_attn") is not None, reason="the kernel is installed here")
def test_missing_attention_kernel_is_a_device_error():
    with pytest.raises(DeviceError, match="flash_attention_2"):
        read("random:tiny", attention="flash_attention_2")
