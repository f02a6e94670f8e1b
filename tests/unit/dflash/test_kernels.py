import dataclasses
from importlib import metadata
from types import SimpleNamespace

import pytest
import torch

from dflash import kernels
from dflash.contract.config import load_config
from dflash.kernels import describe_kernels
from dflash.target_shapes import TargetSpec, random_config

config = load_config(None)
plain = TargetSpec.of(random_config("tiny"), "random:tiny")
hybrid = dataclasses.replace(plain, attention_kinds=("full_attention", "linear_attention"))


def describe(spec):
    return describe_kernels(config, SimpleNamespace(spec=spec, attention="sdpa"))


def test_attention_in_use_is_named():
    assert describe(plain)["attention"] == "sdpa"


def test_linear_attention_is_absent_for_plain_targets():
    assert "gated_deltanet" not in describe(plain)


@pytest.mark.parametrize(
    ("version", "cuda", "expected"),
    [
        (None, True, "reference PyTorch (slow): install flash-linear-attention"),
        ("0.4.2", True, "flash-linear-attention 0.4.2"),
        ("0.4.2", False, "reference PyTorch (slow): flash-linear-attention 0.4.2 needs CUDA"),
    ],
)
def test_hybrid_targets_say_how_their_recurrent_layers_run(version, cuda, expected, monkeypatch):
    def find(name):
        if version is None:
            raise metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(kernels.metadata, "version", find)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    assert describe(hybrid)["gated_deltanet"] == expected


@pytest.mark.parametrize("name", ["TORCHDYNAMO_DISABLE", "TORCH_COMPILE_DISABLE"])
def test_a_compiler_switched_off_for_debugging_is_named(name, monkeypatch):
    for switch in ("TORCHDYNAMO_DISABLE", "TORCH_COMPILE_DISABLE"):
        monkeypatch.delenv(switch, raising=False)
    assert "torch.compile" not in describe(plain)
    monkeypatch.setenv(name, "0")
    assert "torch.compile" not in describe(plain)
    monkeypatch.setenv(name, "1")
    assert describe(plain)["torch.compile"].startswith(f"switched off by {name}=1")
