"""What is done to a target's decoder before it runs: cut after the last tap, copied to a device, compiled.

Knows transformers' decoders by their `layers`, `norm` and `config`; nothing of taps' use or of batches.
"""

from __future__ import annotations

import copy
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from dflash.compiling import Compiled, compiled

recurrent_kinds = ("linear_attention",)


def cut(body: nn.Module, layers: int) -> None:
    """Drop the layers past the last tap and the final norm, so that they are neither copied nor run."""
    body.layers = cast(nn.ModuleList, body.layers)[:layers]
    if isinstance(getattr(body, "norm", None), nn.Module):
        body.norm = nn.Identity()
    config = cast(Any, body.config)
    config.num_hidden_layers = layers
    if getattr(config, "layer_types", None):
        config.layer_types = list(config.layer_types)[:layers]


def copy_to(body: nn.Module, device: torch.device) -> nn.Module:
    """A deep copy whose tensors are made on `device` directly."""
    tensors: dict[int, Tensor] = {}
    for parameter in body.parameters():
        moved = parameter.detach().to(device, copy=True)
        tensors[id(parameter)] = nn.Parameter(moved, requires_grad=False)
    for buffer in body.buffers():
        tensors[id(buffer)] = buffer.to(device, copy=True)
    return copy.deepcopy(body, cast(dict[int, Any], tensors))


def compile_layers(body: nn.Module) -> list[Compiled[Any, Any]]:
    """Let the layers run compiled, with one function and so one graph for all of a kind.

    Only `forward` is compiled: hooks of a layer are called around it, as ever. Of recurrent layers it is the
    MLP alone, as their loops over a row would become another graph for every length.
    """
    functions: dict[str, Compiled[Any, Any]] = {}
    layers = cast(nn.ModuleList, body.layers)
    kinds = getattr(body.config, "layer_types", None) or [type(layer).__name__ for layer in layers]
    for kind, layer in zip(kinds, layers, strict=True):
        part = getattr(layer, "mlp", None) if kind in recurrent_kinds else layer
        if isinstance(part, nn.Module):
            if kind not in functions:
                functions[kind] = compiled(_run)
            part.forward = partial(functions[kind], part)
    return list(functions.values())


def _run(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """The module's own forward, past the one that `compile_layers` gave it."""
    return type(module).forward(module, *args, **kwargs)
