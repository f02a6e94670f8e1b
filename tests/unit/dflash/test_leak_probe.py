import dataclasses
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from dflash import target_attention
from dflash.contract.config import load_config
from dflash.contract.errors import ConfigError
from dflash.leak_probe import choose_layout, keeps_apart
from dflash.target import Target, load_target

cpu = torch.device("cpu")
config = load_config(None)


def wish(layout):
    return config.replacing({"target.layout": layout})


@pytest.fixture(scope="module")
def loaded():
    return load_target(config)


@pytest.fixture(scope="module")
def loaded_varlen():
    return load_target(config.replacing({"target.attention": "varlen"}))


def test_a_plain_target_may_be_packed(loaded):
    target = Target(loaded, cpu)
    assert choose_layout(config, target) == "packed"
    assert choose_layout(wish("padded"), target) == "padded"
    with pytest.raises(ConfigError, match="needs variable-length attention"):
        choose_layout(wish("flat"), target)


@pytest.mark.parametrize(("layout", "chosen"), [("auto", "flat"), ("flat", "flat"), ("packed", "packed")])
def test_a_target_with_varlen_attention_gets_one_flat_row(loaded_varlen, layout, chosen):
    assert choose_layout(wish(layout), Target(loaded_varlen, cpu)) == chosen


def test_a_flat_row_is_probed_with_its_own_kernel(loaded_varlen, monkeypatch):
    """The probe must find what the kernel does, though packed rows are in order."""
    target = Target(loaded_varlen, cpu)

    def blind(module, *args, document_starts=None, host_document_starts=None, **others):
        return attend(module, *args, **others)

    attend = target_attention.attend
    monkeypatch.setattr(target_attention, "attend", blind)
    target_attention.use_varlen(target._body)  # registered again
    try:
        assert not keeps_apart(target, "flat")
        assert choose_layout(config, target) == "packed"
        with pytest.raises(ConfigError, match="see each other"):
            choose_layout(wish("flat"), target)
    finally:
        monkeypatch.undo()
        target_attention.use_varlen(target._body)


class RowBody(nn.Module):
    """A stand-in for a target: what `mix` makes of the embedded row, whatever masks and positions say."""

    def __init__(self, mix):
        super().__init__()
        self.embed, self.mix = nn.Embedding(97, 8), mix
        self.layers = nn.ModuleList([nn.Identity()])

    def forward(self, input_ids, **_):
        return self.layers[0](self.mix(self.embed(input_ids)))


def make_row_target(mix, kinds=("full_attention",), attention="sdpa", max_positions=4096):
    spec = SimpleNamespace(vocab=97, hidden=8, attention_kinds=kinds, max_positions=max_positions)
    loaded = SimpleNamespace(body=RowBody(mix), spec=spec, taps=(0,), attention=attention, compile=False)
    return Target(loaded, cpu)


leaks = {
    "recurrent state": lambda x: x.cumsum(1),
    "faint leak, below any tolerance": lambda x: x + 1e-6 * x.cumsum(1),
    "positions of the row, not of the document": lambda x: x + torch.arange(x.shape[1])[:, None],
}


@pytest.mark.parametrize("attention", ["sdpa", target_attention.varlen])
@pytest.mark.parametrize("leak", leaks)
def test_a_leaking_target_is_found_out_and_padded(leak, attention):
    leaky = make_row_target(leaks[leak], attention=attention)
    assert not keeps_apart(leaky, "packed")
    assert not keeps_apart(leaky, "flat")
    assert choose_layout(config, leaky) == "padded"
    with pytest.raises(ConfigError, match="see each other"):
        choose_layout(wish("packed"), leaky)


def test_a_kernel_for_long_documents_is_probed_with_long_ones():
    """Where there is one, and documents that long."""
    late = lambda x: x + 1e-6 * x.cumsum(1) * (x.shape[1] > 1000)  # noqa: E731
    for dense, max_positions, apart in [(False, 4096, True), (True, 4096, False), (True, 512, True)]:
        target = make_row_target(late, attention=target_attention.varlen, max_positions=max_positions)
        target.dense = dense
        assert keeps_apart(target, "flat") is apart
        assert keeps_apart(target, "packed")


@pytest.mark.parametrize("kind", ["sliding_attention", "linear_attention"])
def test_kinds_of_layers_that_a_short_probe_cannot_judge_are_padded(kind):
    assert keeps_apart(make_row_target(lambda x: x), "packed")
    assert not keeps_apart(make_row_target(lambda x: x, ("full_attention", kind)), "packed")


def test_a_mask_dropped_by_the_kernel_is_found_out(loaded):
    blind = Target(dataclasses.replace(loaded, attention="flash_attention_2"), cpu)
    packed = blind._body.forward
    # Rows that the kernel takes for one sequence each.
    blind._body.forward = lambda input_ids, **_: packed(input_ids=input_ids, use_cache=False)
    assert not keeps_apart(blind, "packed")


def test_recurrent_states_that_run_on_into_the_next_document_are_found():
    """A hybrid target is never packed; were it taken for a plain one, the probe would still find the leak."""
    target = Target(load_target(config.replacing({"target.model": "random:tiny-hybrid"})), cpu)
    assert choose_layout(config, target) == "padded"
    with pytest.raises(ConfigError, match="see each other"):
        choose_layout(wish("packed"), target)
    target.spec = dataclasses.replace(target.spec, attention_kinds=("full_attention",))
    assert not keeps_apart(target, "packed")
    assert keeps_apart(Target(load_target(config), cpu), "packed")
