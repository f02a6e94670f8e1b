"""A Llama in one GGUF file, with its tokenizer and chat template: weights, head and tokens as they were."""

import json
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from dflash.contract.config import load_config
from dflash.contract.model_shapes import UnknownShape, read_model_shape
from dflash.data.tokenizer import open_tokenizer
from dflash.target import load_target
from dflash.target_shapes import TargetSpec
from dflash.target_weights import read_config, read_target

gguf = pytest.importorskip("gguf")
pytest.importorskip("accelerate")

template = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
talk = [{"role": "user", "content": "how far?"}, {"role": "assistant", "content": "as far as it goes"}]


def in_pairs(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of queries or keys in the order that llama.cpp turns them: halves of a head interleaved."""
    rows, columns = weight.shape
    return weight.view(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def llama(request, tmp_path_factory):
    """(path of the file, the model that it holds)."""
    with (Path(__file__).parents[2] / "data/cases/data/tiny_bpe_tokenizer/tokenizer.json").open(
        encoding="utf-8"
    ) as file:
        tokenizer = json.load(file)["model"]
    tokens = sorted(tokenizer["vocab"], key=tokenizer["vocab"].get)
    tokens += [f"<unused{i}>" for i in range(len(tokens), 397)]
    tokens += ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    config = LlamaConfig(
        hidden_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=96,
        vocab_size=len(tokens),
        rope_theta=100_000.0,
        tie_word_embeddings=request.param,
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config)
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(4)
    writer.add_context_length(512)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(96)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_rope_dimension_count(16)
    writer.add_rope_freq_base(100_000.0)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token.startswith("<") and token.endswith(">") else 1 for token in tokens])
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in tokenizer["merges"]]
    writer.add_token_merges(merges)
    writer.add_bos_token_id(len(tokens) - 2)
    writer.add_eos_token_id(len(tokens) - 1)
    writer.add_chat_template(template)
    names = {
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
    }
    state = model.state_dict()
    writer.add_tensor("token_embd.weight", state["model.embed_tokens.weight"].numpy())
    writer.add_tensor("output_norm.weight", state["model.norm.weight"].numpy())
    if not request.param:
        writer.add_tensor("output.weight", state["lm_head.weight"].numpy())
    for layer in range(4):
        for ours, theirs in names.items():
            weight = state[f"model.layers.{layer}.{ours}.weight"]
            if theirs in ("attn_q", "attn_k"):
                weight = in_pairs(weight, 4 if theirs == "attn_q" else 2)
            writer.add_tensor(f"blk.{layer}.{theirs}.weight", weight.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path, model


def test_weights_and_head_are_those_of_the_file(llama):
    path, model = llama
    found = read_target(str(path), seed=0, dtype=torch.float32, attention="sdpa")
    assert torch.equal(found.embedding, model.model.embed_tokens.weight)
    assert torch.equal(found.head, model.lm_head.weight)
    assert (found.head is found.embedding) == model.config.tie_word_embeddings
    ids = torch.arange(50)[None]
    with torch.no_grad():
        expected, got = model.model(ids).last_hidden_state, found.body(ids).last_hidden_state
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def test_the_shape_is_read_without_weights(llama):
    path, model = llama
    spec = TargetSpec.of(read_config(str(path)), "x")
    assert (spec.model_type, spec.layers, spec.hidden, spec.head_dim) == ("llama", 4, 64, 16)
    assert spec.rope_theta == 100_000.0
    assert spec.tied == model.config.tie_word_embeddings
    assert isinstance(read_model_shape(str(path)), UnknownShape)


def test_tokenizer_and_template_come_from_the_file(llama):
    path, _model = llama
    config = load_config(None, [f"target.model={path}", "drafter.tap_count=1"])
    tokenizer = open_tokenizer(config.target)
    rendered = tokenizer.render(talk)
    assert tokenizer.decode(rendered.ids[rendered.loss_mask]) == "as far as it goes<|im_end|>"
    assert tokenizer.special.eos == tokenizer.vocab_size - 1
    assert load_target(config).spec.vocab == tokenizer.vocab_size
