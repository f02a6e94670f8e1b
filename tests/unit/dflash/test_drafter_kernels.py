"""Which kernels a drafter gets, with and without a compiler."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dflash.attention import SdpaView
from dflash.compiled_drafter import CompiledRunner
from dflash.contract.config import TrainConfig, load_config
from dflash.contract.errors import ConfigError
from dflash.drafter import PlainRunner
from dflash.drafter_kernels import choose_kernels, scores_bytes, takes_tiles
from dflash.flex_attention import FlexView

wide: Any = SimpleNamespace(hidden=4096, heads=32, block_size=16)
narrow: Any = SimpleNamespace(hidden=256, heads=4, block_size=16)
gpu, cpu = torch.device("cuda"), torch.device("cpu")


@pytest.fixture(autouse=True)
def compiler_on(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TORCHDYNAMO_DISABLE", "TORCH_COMPILE_DISABLE"):
        monkeypatch.delenv(name, raising=False)


def configure(attention: str, *changes: str) -> TrainConfig:
    return load_config(None, [f"drafter.attention={attention}", *changes])


@pytest.mark.parametrize(
    ("attention", "spec", "place", "flex"),
    [
        ("auto", wide, gpu, True),
        ("auto", narrow, gpu, False),
        ("auto", wide, cpu, False),
        ("flex", narrow, gpu, True),
        ("sdpa", wide, gpu, False),
    ],
)
def test_flex_is_for_wide_drafters_on_gpus(
    attention: str, spec: Any, place: torch.device, flex: bool
) -> None:
    view_of, runner = choose_kernels(configure(attention), spec, place)
    assert view_of == (FlexView.of if flex else SdpaView.of)
    assert isinstance(runner, CompiledRunner if flex else PlainRunner)


@pytest.mark.parametrize("name", ["TORCHDYNAMO_DISABLE", "TORCH_COMPILE_DISABLE"])
def test_without_a_compiler_nothing_falls_into_attention_that_keeps_all_scores(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """C120: a debugging switch costs speed, never the memory of every score."""
    monkeypatch.setenv(name, "1")
    assert not takes_tiles(configure("auto").drafter, wide, "cuda")
    view_of, runner = choose_kernels(configure("auto"), wide, gpu)
    assert view_of == SdpaView.of
    assert isinstance(runner, PlainRunner)


def test_flex_asked_for_without_a_compiler_is_refused_with_what_it_would_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """C120."""
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")
    changes = ("pipeline.token_budget=8192", "window.tokens=8192", "objective.anchors_per_document=512")
    config = configure("flex", *changes)
    assert scores_bytes(config, wide) == 32 * 8192 * 16384 * 4
    with pytest.raises(ConfigError, match="uncompiled") as caught:
        choose_kernels(config, wide, gpu)
    found, remedy = str(caught.value.found), str(caught.value.remedy)
    assert "TORCHDYNAMO_DISABLE=1" in found
    assert "17.2 GB a layer for pipeline.token_budget=8192" in found
    assert "drafter.attention=sdpa" in remedy
