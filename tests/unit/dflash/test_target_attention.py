import dataclasses
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch._subclasses import FakeTensorMode

from dflash import target_attention
from dflash.contract.errors import ConfigError
from dflash.target_attention import (
    attend,
    attend_documents,
    flash_attn_version,
    varlen_kernel,
    varlen_obstacle,
)
from dflash.target_shapes import TargetSpec, random_config

plain = TargetSpec.of(random_config("tiny"), "random:tiny")


def tensors(lengths, heads=4, kv_heads=2, width=8, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    tokens = sum(lengths)
    shapes = ((tokens, heads, width), (tokens, kv_heads, width), (tokens, kv_heads, width))
    query, key, value = (torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes)
    starts = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)
    return query, key, value, starts


def exact(query, key, value, lengths, scale):
    """Softmax over what a token may see, written out in float64."""
    groups = query.shape[1] // key.shape[1]
    out, first = [], 0
    for length in lengths:
        q, k, v = (x[first : first + length].double() for x in (query, key, value))
        k, v = (x.repeat_interleave(groups, dim=1) for x in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q, k) * scale
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        out.append(torch.einsum("hqk,khd->qhd", scores.masked_fill(future, -torch.inf).softmax(-1), v))
        first += length
    return torch.cat(out)


@pytest.mark.parametrize("lengths", [[1], [5], [3, 1, 9, 2]])
def test_documents_are_attended_causally_and_apart(lengths):
    query, key, value, starts = tensors(lengths)
    out = attend_documents(query, key, value, starts, starts.long(), 0.3)
    torch.testing.assert_close(out.double(), exact(query, key, value, lengths, 0.3), rtol=1e-5, atol=1e-6)


def test_the_operator_keeps_what_it_promises_the_compiler():
    query, key, value, starts = tensors([3, 4])
    tests = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    arguments = (query, key, value, starts, starts.long(), 0.3)
    torch.library.opcheck(attend_documents, arguments, test_utils=tests)


def test_the_operator_has_starts_on_the_device_and_on_the_host():
    """What the compiler works with for GPUs: tensors of two devices."""
    with FakeTensorMode():
        tensors = [torch.empty(9, heads, 16, device="cuda", dtype=torch.bfloat16) for heads in (4, 2, 2)]
        starts = torch.empty(3, device="cuda", dtype=torch.int32)
        host_starts = torch.empty(3, dtype=torch.int64)
        out = torch.ops.dflash.attend_documents(*tensors, starts, host_starts, 0.3)
    assert (out.device.type, out.shape, out.dtype) == ("cuda", (9, 4, 16), torch.bfloat16)


def interface(lengths):
    """What transformers hands over: [1, H, T, E], made by transposing."""
    query, key, value, starts = tensors(lengths)
    return [x.transpose(0, 1)[None] for x in (query, key, value)], starts


def given(starts):
    return {"document_starts": starts, "host_document_starts": starts.long()}


def test_the_interface_attends_documents_when_they_are_given():
    lengths = [3, 1, 9]
    (query, key, value), starts = interface(lengths)
    out, weights = attend(None, query, key, value, None, scaling=0.3, **given(starts))
    assert weights is None
    query, key, value, _ = tensors(lengths)
    assert torch.equal(out[0], attend_documents(query, key, value, starts, starts.long(), 0.3))


def test_the_interface_is_sdpa_without_documents():
    (query, key, value), _ = interface([6])
    module = SimpleNamespace(num_key_value_groups=2, is_causal=True)
    out, _ = attend(module, query, key, value, None, scaling=0.3)
    query, key, value, _ = tensors([6])
    torch.testing.assert_close(out[0].double(), exact(query, key, value, [6], 0.3), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["sliding_window", "softcap", "s_aux", "position_bias"])
def test_what_the_kernels_would_not_heed_is_refused(name):
    (query, key, value), starts = interface([6])
    with pytest.raises(ConfigError, match=name):
        attend(None, query, key, value, None, **given(starts), **{name: 5})


def changed(**fields):
    return dataclasses.replace(plain, **fields)


@pytest.mark.parametrize(
    ("spec", "dtype", "capability", "obstacle"),
    [
        (plain, torch.bfloat16, (9, 0), None),
        (plain, torch.float32, (9, 0), "float32"),
        (plain, torch.bfloat16, (7, 5), "Ampere"),
        (changed(head_dim=320), torch.bfloat16, (9, 0), "width 320"),
        (changed(head_dim=36), torch.bfloat16, (9, 0), "width 36"),
        (changed(attention_kinds=("sliding_attention",)), torch.bfloat16, (9, 0), "sliding_attention"),
    ],
)
def test_kernels_on_gpus_have_their_limits(spec, dtype, capability, obstacle, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    found = varlen_obstacle(spec, dtype, "cuda")
    assert found is None if obstacle is None else obstacle in found


def kernel_in_words(device):
    return varlen_kernel(torch.device(device), torch.bfloat16, plain)


def test_flash_attn_is_taken_when_it_can_be_imported(monkeypatch):
    monkeypatch.setattr(target_attention, "cudnn", SimpleNamespace(serves=lambda kind, others: False))
    flash_attn_version.cache_clear()
    monkeypatch.setitem(sys.modules, "flash_attn", None)  # as an import that fails
    assert flash_attn_version() is None
    assert kernel_in_words("cuda") == "torch's flash attention"
    flash_attn_version.cache_clear()
    monkeypatch.setitem(sys.modules, "flash_attn", ModuleType("flash_attn"))
    monkeypatch.setattr(target_attention.metadata, "version", lambda name: "2.8.3")
    assert kernel_in_words("cuda") == "flash-attn 2.8.3"
    assert kernel_in_words("cpu") == "SDPA by document"
    flash_attn_version.cache_clear()


def test_the_kernel_of_long_documents_is_named_where_it_has_been_tried_out(monkeypatch):
    kinds = []

    def serves(kind, others):
        kinds.append(kind)
        return True

    monkeypatch.setattr(target_attention, "cudnn", SimpleNamespace(serves=serves))
    assert kernel_in_words("cuda") == (
        "cuDNN for documents of 1024 tokens and more, torch's flash attention for others"
    )
    assert kernel_in_words("cpu") == "SDPA by document"
    assert kinds == [(torch.device("cuda"), torch.bfloat16, 4, 2, 32)]


@pytest.mark.parametrize(
    ("parameters", "options"),
    [
        ("q, k, v, *, scale=None, window_size=(-1, -1)", {"window_size": (-1, 0)}),
        (
            "q, k, v, *, scale=None, window_size=(-1, -1), enable_gqa=False",
            {"window_size": (-1, 0), "enable_gqa": True},
        ),
        ("q, is_causal=False", {"is_causal": True}),
    ],
)
def test_torch_is_asked_in_the_words_of_its_version(parameters, options, monkeypatch):
    module = ModuleType("torch.nn.attention.varlen")
    exec(f"def varlen_attn({parameters}): ...", module.__dict__)
    monkeypatch.setitem(sys.modules, "torch.nn.attention.varlen", module)
    target_attention._torch_options.cache_clear()
    assert target_attention._torch_options() == options
    target_attention._torch_options.cache_clear()
