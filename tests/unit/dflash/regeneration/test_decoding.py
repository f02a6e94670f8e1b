import numpy as np
import pytest
import torch
from transformers import DynamicCache, Qwen3_5ForCausalLM, Qwen3_5TextConfig, Qwen3Config, Qwen3ForCausalLM

from dflash.contract.model_shapes import hybrid_shapes
from dflash.regeneration.decoding import Sampling, decode

cpu = torch.device("cpu")
plain = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 48,
    "vocab_size": 40,
    "initializer_range": 0.3,
}


@pytest.fixture(scope="module", params=["attention", "hybrid"])
def language_model(request):
    torch.manual_seed(3)
    if request.param == "attention":
        return Qwen3ForCausalLM(Qwen3Config(**plain)).eval()
    shape = {**hybrid_shapes["tiny-hybrid"], "num_hidden_layers": 4, "hidden_size": 32, "vocab_size": 40}
    return Qwen3_5ForCausalLM(Qwen3_5TextConfig(**shape)).eval()


def prompts(*lengths):
    rng = np.random.default_rng(0)
    return [rng.integers(2, 40, size=length).astype(np.int32) for length in lengths]


def decode_with(model, given, *, ends=frozenset({1}), most=12, sampling=None, uniforms=None):
    def forward(ids, mask, positions, cache):
        inputs = {"input_ids": ids, "attention_mask": mask, "position_ids": positions}
        return model(**inputs, past_key_values=cache, use_cache=True).logits[:, -1]

    cache = DynamicCache(config=model.config)
    return decode(
        forward,
        cache,
        given,
        ends=ends,
        most=most,
        sampling=sampling or Sampling(),
        uniforms=uniforms,
        device=cpu,
    )


def test_greedy_decoding_side_by_side_is_generate_alone(language_model):
    """Prompts of unequal length, of which some end early: the batch shrinks on the way."""
    given = prompts(3, 17, 8, 1)
    expected = [
        language_model.generate(
            torch.from_numpy(p.astype(np.int64))[None],
            do_sample=False,
            max_new_tokens=12,
            eos_token_id=[1, 7, 9, 11],
            pad_token_id=0,
        )[0, len(p) :].tolist()
        for p in given
    ]
    found = decode_with(language_model, given, ends=frozenset({1, 7, 9, 11}))
    assert [row.ids for row in found] == expected
    assert [row.ended for row in found] == [row[-1] in {1, 7, 9, 11} for row in expected]
    assert len({len(row) for row in expected}) > 1


def follow(table):
    """A model whose next logits are a row of the table: exact, whatever else is in the batch."""

    class Cache:
        def reorder_cache(self, rows):
            self.rows = rows

    return lambda ids, _mask, _positions, _cache: table[ids[:, -1]], Cache()


@pytest.mark.parametrize("temperature", [0.5, 1.5])
def test_what_a_row_draws_does_not_depend_on_its_neighbours(temperature):
    table = torch.randn(40, 40, generator=torch.Generator().manual_seed(0))
    model, cache = follow(table)
    given, most = prompts(4, 9, 2, 6, 5), 40
    uniforms = np.random.default_rng(1).random((5, most), np.float32)
    options = {
        "ends": frozenset({1, 2, 3}),
        "most": most,
        "sampling": Sampling(temperature=temperature, top_p=0.8),
        "device": cpu,
    }
    together = decode(model, cache, given, uniforms=uniforms, **options)
    alone = [
        decode(model, cache, [prompt], uniforms=own[None], **options)[0]
        for prompt, own in zip(given, uniforms, strict=True)
    ]
    assert together == alone
    assert len({tuple(row.ids) for row in together}) == 5
    assert any(row.ended for row in together)


def test_drawing_is_from_the_likeliest_tokens_that_come_to_top_p():
    logits = torch.log(torch.tensor([[0.1, 0.5, 0.05, 0.3, 0.05]]))
    sampling = Sampling(temperature=1.0, top_p=0.75)  # 0.5 and 0.3
    drawn = [int(sampling.choose(logits, torch.tensor([u]))) for u in (0.0, 0.62, 0.63, 0.999999)]
    assert drawn == [1, 1, 3, 3]
    everything = Sampling(temperature=1.0)
    uniforms = (torch.arange(1000) + 0.5) / 1000
    counts = torch.bincount(everything.choose(logits.expand(1000, -1), uniforms), minlength=5)
    assert counts.tolist() == pytest.approx([100, 500, 50, 300, 50], abs=1)


def test_low_temperatures_come_to_the_likeliest():
    logits = torch.tensor([[1.0, 1.2, 0.3]])
    assert int(Sampling(temperature=0.01).choose(logits, torch.tensor([0.99]))) == 1
    assert int(Sampling().choose(logits, None)) == 1
