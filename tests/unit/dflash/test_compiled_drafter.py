"""C120: layers that were to be compiled and cannot be are refused on a GPU, before they fill its memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dflash import compiled_drafter, compiling
from dflash.attention import full, sliding
from dflash.compiled_drafter import CompiledRunner
from dflash.compiling import CompilationWarning
from dflash.contract.errors import DFlashError
from dflash.drafter import DrafterSpec, Layer, PlainRunner
from dflash.tiles import tile

spec = DrafterSpec(
    hidden=32,
    layers=1,
    heads=4,
    kv_heads=2,
    head_dim=8,
    intermediate=64,
    taps=(0,),
    block_size=16,
    layer_types=(full,),
    sliding_window=40,
    mask_token_id=3,
    rope_theta=1e4,
    rms_eps=1e-6,
    vocab=100,
    max_positions=1000,
    target_layers=4,
)


class PlainView:
    """Attention of any kind: what is compiled here is not what it means."""

    def attend(
        self, query: Any, context_key: Any, context_value: Any, key: Any, value: Any, kind: str
    ) -> Any:
        q, k, v = (x.transpose(0, 1)[None] for x in (query, key, value))
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        return out[0].transpose(0, 1)


def run(runner: Any) -> torch.Tensor:
    torch.manual_seed(0)
    layer = Layer(spec, sliding)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    x, context = torch.randn(tile, spec.hidden), torch.randn(2 * tile, spec.hidden)
    tables = [
        (torch.ones(rows, 1, spec.head_dim), torch.zeros(rows, 1, spec.head_dim)) for rows in (2 * tile, tile)
    ]
    out: torch.Tensor = runner.run(layer, x, context, (tables[0], tables[1]), PlainView())
    return out


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_drafter, "_on_gpu", lambda x: True)


def test_a_compiled_layer_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "backend", "eager")
    torch.testing.assert_close(run(CompiledRunner()), run(PlainRunner()))


def test_a_layer_that_cannot_be_compiled_is_refused_with_what_it_would_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(graph: object, inputs: object) -> None:
        raise RuntimeError("no compiler on this machine")

    monkeypatch.setattr(compiling, "backend", broken)
    with (
        pytest.warns(CompilationWarning, match="no compiler on this machine"),
        pytest.raises(DFlashError, match="could not be compiled") as caught,
    ):
        run(CompiledRunner())
    assert caught.value.where == "drafter.attention"
    assert f"{tile} queries and {3 * tile} keys" in str(caught.value.found)
    assert "drafter.attention=sdpa" in str(caught.value.remedy)
