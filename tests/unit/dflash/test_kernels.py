import dataclasses
from importlib import metadata
from types import SimpleNamespace

import pytest
import torch

from dflash import kernels
from dflash.contract.config import load_config
from dflash.kernels import describe_kernels, slow_kernels
from dflash.target_shapes import TargetSpec, random_config

config = load_config(None)
plain = TargetSpec.of(random_config("tiny"), "random:tiny")
hybrid = dataclasses.replace(plain, attention_kinds=("full_attention", "linear_attention"))


def describe(spec, **facts):
    target = SimpleNamespace(spec=spec, **{"kernel": "sdpa", "compiled": [], **facts})
    return describe_kernels(config, target, "packed")


def test_attention_and_rows_in_use_are_named():
    kernels = describe(plain)
    assert (kernels["attention"], kernels["target_rows"]) == ("sdpa", "packed")


def test_layers_that_were_to_be_compiled_and_are_not_say_why():
    assert describe(plain)["target_layers"] == "as they stand"
    fine, broken = SimpleNamespace(failure=None), SimpleNamespace(failure="no gcc")
    assert describe(plain, compiled=[fine])["target_layers"] == "compiled"
    assert describe(plain, compiled=[fine, broken])["target_layers"] == "as they stand: no gcc"


def a_target(spec, **facts):
    return SimpleNamespace(
        spec=spec,
        **{
            "kernel": "sdpa",
            "device": torch.device("cpu"),
            "dtype": torch.bfloat16,
            "varlen": False,
            **facts,
        },
    )


@pytest.fixture
def installed(monkeypatch):
    """Packages with their versions and what importing them raises; to be filled by the test."""
    packages = {}

    def find(name):
        if name not in packages:
            raise metadata.PackageNotFoundError(name)
        return "1.0"

    def load(name):
        error = {
            "fla": packages.get("flash-linear-attention"),
            "causal_conv1d": packages.get("causal-conv1d"),
        }[name]
        if error is not None:
            raise error

    monkeypatch.setattr(kernels.metadata, "version", find)
    monkeypatch.setattr(kernels.importlib, "import_module", load)
    return packages


@pytest.mark.parametrize(
    ("present", "missing"),
    [
        ((), "flash-linear-attention causal-conv1d"),
        (("flash-linear-attention",), "causal-conv1d"),
        (("flash-linear-attention", "causal-conv1d"), None),
    ],
)
def test_packages_that_a_hybrid_target_lacks_are_named(present, missing, installed):
    installed.update(dict.fromkeys(present))
    assert slow_kernels(config, a_target(plain)) == []
    if missing is None:
        assert slow_kernels(config, a_target(hybrid)) == []
    else:
        (line,) = slow_kernels(config, a_target(hybrid))
        assert f"pip install {missing})" in line


def test_a_kernel_package_that_cannot_be_imported_is_as_good_as_none_and_says_so(installed):
    """Transformers falls back in silence on whatever its import raises."""
    installed.update({"flash-linear-attention": OSError("undefined symbol: x"), "causal-conv1d": None})
    (line,) = slow_kernels(config, a_target(hybrid))
    assert "flash-linear-attention is installed and cannot be imported (OSError: undefined symbol: x)" in line


@pytest.mark.parametrize(
    ("choice", "obstacle", "told"),
    [
        (
            "auto",
            "neither flash-attn nor a torch with variable-length attention is installed",
            "install flash-attn",
        ),
        ("auto", "its kernels do not take float32", "do not take float32"),
        ("eager", None, "target.attention is eager"),
        ("sdpa", None, None),
        ("auto", None, None),
    ],
)
def test_a_gpu_target_that_attends_slowly_says_why(choice, obstacle, told, monkeypatch):
    monkeypatch.setattr(kernels, "varlen_obstacle", lambda *_facts: obstacle)
    monkeypatch.setattr(kernels, "flash_attn_version", lambda: None)
    chosen = load_config(None, [f"target.attention={choice}"])
    lines = slow_kernels(chosen, a_target(plain, device=torch.device("cuda")))
    assert [told in line for line in lines] == ([] if told is None else [True])
    assert slow_kernels(chosen, a_target(plain)) == []  # a CPU has no such kernels


def test_linear_attention_is_absent_for_plain_targets():
    assert "gated_deltanet" not in describe(plain)


@pytest.mark.parametrize(
    ("version", "cuda", "expected"),
    [
        (None, True, "reference PyTorch (slow): install flash-linear-attention"),
        ("0.4.2", True, "flash-linear-attention 0.4.2"),
        ("broken", True, "reference PyTorch (slow): flash-linear-attention broken is installed and cannot"),
        ("0.4.2", False, "reference PyTorch (slow): flash-linear-attention 0.4.2 needs CUDA"),
    ],
)
def test_hybrid_targets_say_how_their_recurrent_layers_run(version, cuda, expected, monkeypatch):
    def find(name):
        if version is None:
            raise metadata.PackageNotFoundError(name)
        return version

    def load(_name):
        if version == "broken":
            raise ImportError("no kernels")

    monkeypatch.setattr(kernels.importlib, "import_module", load)
    monkeypatch.setattr(kernels.metadata, "version", find)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    assert (
        describe(hybrid)["gated_deltanet"].removesuffix(" be imported (ImportError: no kernels)") == expected
    )


@pytest.mark.parametrize(
    ("attention", "told"), [("auto", "sdpa by document"), ("flex", "flex, in compiled layers")]
)
def test_the_drafters_attention_is_named(attention, told):
    chosen = load_config(None, [f"drafter.attention={attention}", "devices.kind=logical"])
    target = SimpleNamespace(spec=plain, kernel="sdpa", compiled=[])
    assert describe_kernels(chosen, target, "packed")["drafter_attention"] == told


@pytest.mark.parametrize("name", ["TORCHDYNAMO_DISABLE", "TORCH_COMPILE_DISABLE"])
def test_a_compiler_switched_off_for_debugging_is_named(name, monkeypatch):
    """C120."""
    for switch in ("TORCHDYNAMO_DISABLE", "TORCH_COMPILE_DISABLE"):
        monkeypatch.delenv(switch, raising=False)
    assert "torch.compile" not in describe(plain)
    monkeypatch.setenv(name, "0")
    assert "torch.compile" not in describe(plain)
    monkeypatch.setenv(name, "1")
    assert describe(plain)["torch.compile"].startswith(f"switched off by {name}=1")
