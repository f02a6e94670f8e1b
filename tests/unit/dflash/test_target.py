import dataclasses
import random
import threading

import numpy as np
import pytest
import torch

from dflash.contract.config import load_config
from dflash.contract.errors import ConfigError
from dflash.leak_probe import choose_layout
from dflash.packing import lay_out
from dflash.target import Target, load_target

cpu = torch.device("cpu")
config = load_config(None)


@pytest.fixture(scope="module")
def loaded():
    return load_target(config)


@pytest.fixture(scope="module")
def target(loaded):
    return Target(loaded, cpu)


def make_documents(*lengths, seed=0):
    rng = random.Random(seed)
    return [[rng.randrange(4000) for _ in range(n)] for n in lengths]


def no_anchors(documents):
    return [[] for _ in documents]


def test_body_ends_after_the_last_tap_and_is_frozen(loaded):
    assert loaded.taps == (1, 3, 5)
    assert len(loaded.body.layers) == 6
    assert loaded.spec.layers == 8
    assert not any(p.requires_grad for p in loaded.body.parameters())
    assert loaded.embedding.shape == loaded.head.shape == (4096, loaded.spec.hidden)


def test_dtype_follows_the_device_type_unless_chosen():
    assert load_target(config, "cuda").embedding.dtype == torch.bfloat16
    chosen = config.replacing({"target.dtype": "float32"})
    assert load_target(chosen, "cuda").head.dtype == torch.float32
    assert load_target(config, "cpu").head.dtype == torch.float32


def test_taps_past_the_target_are_refused():
    with pytest.raises(ConfigError, match="past the last layer"):
        load_target(config.replacing({"drafter.taps": (1, 8)}))


def test_taps_are_the_residual_stream_after_their_layers(loaded, target, make_batch):
    """hidden_states[k + 1] of the untruncated model, before the final norm."""
    from transformers import AutoModel

    from dflash.target_shapes import random_config

    whole = AutoModel.from_config(random_config("tiny"))
    whole.load_state_dict(load_whole_state())
    (document,) = make_documents(21)
    with torch.no_grad():
        states = whole(torch.tensor([document]), output_hidden_states=True).hidden_states
    expected = torch.cat([states[tap + 1][0] for tap in loaded.taps], dim=-1)
    taps = target.forward(make_batch([document], [[]], 4))
    torch.testing.assert_close(taps, expected, rtol=1e-5, atol=1e-6)


def load_whole_state():
    from dflash.target_weights import read_target

    return read_target("random:tiny", seed=0, dtype=torch.float32, attention="sdpa").body.state_dict()


def test_packed_and_padded_rows_give_the_same_taps(target, make_batch):
    documents = make_documents(20, 3, 31, 11)
    packed = target.forward(make_batch(documents, no_anchors(documents), 4, packed=True))
    padded = target.forward(make_batch(documents, no_anchors(documents), 4, packed=False))
    assert packed.shape == (65, 3 * target.spec.hidden)
    torch.testing.assert_close(packed, padded, rtol=1e-5, atol=1e-5)


def test_several_packed_rows_with_padding_give_the_same_taps(target, make_batch):
    documents = make_documents(20, 3, 31, 11)
    batch = make_batch(documents, no_anchors(documents), 4)
    expected = target.forward(batch)
    slots = batch.layout.slots.clone()
    slots[23:] += 40 - 23  # rows of 40: documents 0 and 1, then 2, then 3
    slots[54:] += 80 - 71
    layout = dataclasses.replace(batch.layout, rows=3, width=40, slots=slots)
    apart = target.forward(dataclasses.replace(batch, layout=layout))
    torch.testing.assert_close(apart, expected, rtol=1e-5, atol=1e-5)


def test_changing_one_packed_document_leaves_the_others_bit_for_bit(target, make_batch):
    first, second = make_documents(15, 22), make_documents(15, 22, seed=1)
    batches = [make_batch([a, first[1]], [[], []], 4) for a in (first[0], second[0])]
    before, after = (target.forward(batch) for batch in batches)
    assert torch.equal(before[15:], after[15:])
    assert not torch.equal(before[:15], after[:15])


def test_taps_can_be_saved_for_a_backward(target, make_batch):
    taps = target.forward(make_batch(make_documents(9), [[]], 4))
    weight = torch.zeros(taps.shape[1], requires_grad=True)
    (taps @ weight).sum().backward()
    torch.testing.assert_close(weight.grad, taps.sum(0))
    assert not taps.requires_grad


def test_targets_share_no_weights_and_run_at_once(loaded, make_batch):
    targets = [Target(loaded, cpu) for _ in range(3)]
    pointers = [{p.data_ptr() for p in t._body.parameters()} for t in targets]
    pointers.append({p.data_ptr() for p in loaded.body.parameters()})
    assert len(set.union(*pointers)) == sum(map(len, pointers))
    batches = [make_batch(make_documents(20 + 5 * i, 12, seed=i), [[], []], 4) for i in range(3)]
    expected = [targets[0].forward(batch) for batch in batches]
    wrong = []

    def work(target, batch, wanted):
        wrong.extend(batch for _ in range(20) if not torch.equal(target.forward(batch), wanted))

    threads = [
        threading.Thread(target=work, args=args) for args in zip(targets, batches, expected, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_nothing_of_a_batch_is_kept_after_it(target, make_batch):
    target.forward(make_batch(make_documents(9), [[]], 4))
    assert target._buffer is None


def test_a_tapped_layer_that_does_not_run_is_noticed(loaded, make_batch):
    target = Target(loaded, cpu)
    target._body.config.num_hidden_layers = 4
    with pytest.raises(RuntimeError, match="2 of 3 tapped layers ran"):
        target.forward(make_batch(make_documents(9), [[]], 4))


@pytest.fixture(scope="module")
def flat_target():
    return Target(load_target(config.replacing({"target.attention": "varlen"})), cpu)


def test_a_flat_row_gives_the_taps_of_padded_rows(target, flat_target, make_batch):
    documents = make_documents(20, 3, 31, 1, 11)
    batch = make_batch(documents, no_anchors(documents), 4, packed=True)
    assert batch.layout.flat
    padded = make_batch(documents, no_anchors(documents), 4, packed=False)
    torch.testing.assert_close(flat_target.forward(batch), target.forward(padded), rtol=1e-5, atol=1e-5)


def test_documents_of_a_flat_row_do_not_touch_each_other(flat_target, make_batch):
    first, second = make_documents(15, 22), make_documents(15, 22, seed=1)
    before, after = (
        flat_target.forward(make_batch([a, first[1]], [[], []], 4)) for a in (first[0], second[0])
    )
    assert torch.equal(before[15:], after[15:])
    assert not torch.equal(before[:15], after[:15])


@pytest.mark.parametrize("packed", [True, False])
def test_a_target_with_varlen_attention_runs_other_rows_as_well(target, flat_target, make_batch, packed):
    documents = make_documents(20, 3, 31)
    batch = make_batch(documents, no_anchors(documents), 4, packed=packed)
    if packed:
        layout = lay_out(np.array(batch.lengths), "packed")
        batch = dataclasses.replace(batch, layout=layout)
        assert not layout.flat
    torch.testing.assert_close(flat_target.forward(batch), target.forward(batch), rtol=1e-5, atol=1e-5)


def test_varlen_attention_is_refused_where_it_does_not_serve(hybrid_path):
    wish = config.replacing({"target.model": str(hybrid_path), "target.attention": "varlen"})
    with pytest.raises(ConfigError, match="linear_attention"):
        load_target(wish)


def test_layers_are_compiled_on_cuda_when_they_are_wide_enough_or_on_request():
    assert not load_target(config, "cpu").compile
    assert not load_target(config, "cuda").compile  # random:tiny
    assert load_target(config.replacing({"target.compile": "on"}), "cpu").compile


@pytest.fixture(scope="module")
def hybrid_path(tmp_path_factory):
    from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

    path = tmp_path_factory.mktemp("hybrid")
    torch.manual_seed(0)
    shape = Qwen3_5TextConfig(
        hidden_size=32,
        num_hidden_layers=8,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        intermediate_size=48,
        vocab_size=60,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
    )
    Qwen3_5ForCausalLM(shape).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def hybrid(hybrid_path):
    return Target(load_target(config.replacing({"target.model": str(hybrid_path)})), cpu)


def test_hybrid_target_is_padded_and_right_padding_is_harmless(hybrid, make_batch):
    assert hybrid.spec.hybrid
    assert choose_layout(config, hybrid) == "padded"
    documents = [[token % 60 for token in d] for d in make_documents(9, 30)]
    together = hybrid.forward(make_batch(documents, [[], []], 4, packed=False))
    alone = [hybrid.forward(make_batch([d], [[]], 4, packed=False)) for d in documents]
    torch.testing.assert_close(together, torch.cat(alone), rtol=1e-5, atol=1e-5)
