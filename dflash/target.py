"""The frozen target: loaded once on the CPU, copied to each device, tapped while it runs.

Knows nothing of drafters, documents' choice or of where the taps go next.

Shapes: T real tokens of a batch, F taps, H hidden width, V vocabulary.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from dflash.attention import upload
from dflash.batch import Batch, Layout
from dflash.contract.config import TrainConfig
from dflash.contract.errors import ConfigError
from dflash.taps import resolve_taps
from dflash.target_shapes import TargetSpec
from dflash.target_weights import read_target


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedTarget:
    """A target on the CPU, to be copied to devices. All weights frozen and of one dtype."""

    body: nn.Module  # text decoder that ends after the last tapped layer; no head
    embedding: Tensor  # [V, H]
    head: Tensor  # [V, H]; the same object as `embedding` when tied
    spec: TargetSpec  # of the whole target
    taps: tuple[int, ...]
    attention: str  # kernel in use: "sdpa", "eager", "flash_attention_2"


def load_target(config: TrainConfig, device_type: str = "cpu") -> LoadedTarget:
    """The target that `config.target` names, for devices of that type. Leaves the global generator alone.

    Raises ConfigError when the model cannot be had, DeviceError when its attention kernel is not installed.
    """
    chosen = config.target
    attention = "sdpa" if chosen.attention == "auto" else chosen.attention
    dtype = _dtype(chosen.dtype, device_type)
    weights = read_target(chosen.model, seed=chosen.seed, dtype=dtype, attention=attention)
    spec = TargetSpec.of(weights.config, chosen.model)
    taps = resolve_taps(config.drafter, spec.layers)
    _truncate(weights.body, taps[-1] + 1)
    return LoadedTarget(
        body=weights.body.requires_grad_(False).eval(),
        embedding=weights.embedding,
        head=weights.head,
        spec=spec,
        taps=taps,
        attention=attention,
    )


def _dtype(choice: str, device_type: str) -> torch.dtype:
    if choice == "auto":
        choice = "bfloat16" if device_type == "cuda" else "float32"
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[choice]


def _truncate(body: nn.Module, layers: int) -> None:
    """Drop the layers past the last tap, so that they are neither copied nor run."""
    body.layers = cast(nn.ModuleList, body.layers)[:layers]
    config = cast(Any, body.config)
    config.num_hidden_layers = layers
    if getattr(config, "layer_types", None):
        config.layer_types = list(config.layer_types)[:layers]


@dataclass(frozen=True, slots=True)
class TappedRows:
    """Tapped states as the target laid them out, and where each real token sits."""

    taps: tuple[Tensor, ...]  # F tensors [rows, width, H]
    slots: Tensor  # [T] int64: flat index into rows × width


class Target:
    """A copy of a loaded target on one device. Used by one thread at a time; several copies run at once."""

    def __init__(self, loaded: LoadedTarget, device: torch.device) -> None:
        self.spec, self.device = loaded.spec, device
        self._masked = loaded.attention != "flash_attention_2"  # its kernel reads positions, not masks
        self._body = _copy_to(loaded.body, device)
        self._caught: list[Tensor | None] = [None] * len(loaded.taps)
        layers = cast(nn.ModuleList, self._body.layers)
        for index, tap in enumerate(loaded.taps):
            layers[tap].register_forward_hook(partial(self._catch, index))

    def _catch(self, index: int, _layer: nn.Module, _inputs: object, output: Tensor | tuple[Tensor]) -> None:
        self._caught[index] = output if isinstance(output, Tensor) else output[0]

    def forward(self, batch: Batch) -> Tensor:
        """The tapped states of a batch, [T, F*H] on this device: `run`, then `gather`."""
        return self.gather(self.run(batch))

    def run(self, batch: Batch) -> TappedRows:
        """Run the body over the rows of a batch. On CUDA returns once the work is enqueued."""
        return self.run_tokens(batch.input_ids, batch.positions, batch.document_ids, batch.layout)

    def run_tokens(
        self, input_ids: Tensor, positions: Tensor, document_ids: Tensor, layout: Layout
    ) -> TappedRows:
        """`run` for bare tokens, each [T] int64 on the CPU."""
        packed = torch.stack([layout.slots, input_ids, positions, document_ids])
        slots, ids, positions, documents = upload(packed, self.device)  # one copy instead of four
        shape = (layout.rows, layout.width)
        inputs: dict[str, Tensor] = {"input_ids": _in_rows(ids, slots, shape, 0)}
        if layout.packed:
            inputs["position_ids"] = _in_rows(positions, slots, shape, 0)
            if self._masked:
                inputs["attention_mask"] = _packed_mask(_in_rows(documents, slots, shape, -1))
        with torch.inference_mode():
            self._body(**inputs, use_cache=False)
        taps, self._caught = self._caught, [None] * len(self._caught)
        return TappedRows(tuple(cast(list[Tensor], taps)), slots)

    def gather(self, rows: TappedRows) -> Tensor:
        """The states of the real tokens side by side, [T, F*H], an ordinary tensor without gradient."""
        first = rows.taps[0]
        width = first.shape[-1]
        # Made outside inference mode, so that a drafter on this device may save it for its backward.
        out = torch.empty(len(rows.slots), len(rows.taps) * width, dtype=first.dtype, device=self.device)
        with torch.no_grad():
            for index, tap in enumerate(rows.taps):
                target = out[:, index * width : (index + 1) * width]
                torch.index_select(tap.reshape(-1, width), 0, rows.slots, out=target)
        return out


def _copy_to(body: nn.Module, device: torch.device) -> nn.Module:
    """A deep copy whose tensors are made on `device` directly."""
    tensors: dict[int, Tensor] = {}
    for parameter in body.parameters():
        moved = parameter.detach().to(device, copy=True)
        tensors[id(parameter)] = nn.Parameter(moved, requires_grad=False)
    for buffer in body.buffers():
        tensors[id(buffer)] = buffer.to(device, copy=True)
    return copy.deepcopy(body, cast(dict[int, Any], tensors))


def _in_rows(values: Tensor, slots: Tensor, shape: tuple[int, int], fill: int) -> Tensor:
    """`values` [T] placed at `slots` of rows × width, `fill` where padding is."""
    rows = torch.full((shape[0] * shape[1],), fill, dtype=values.dtype, device=values.device)
    return rows.index_copy_(0, slots, values).view(shape)


def _packed_mask(documents: Tensor) -> Tensor:
    """Causal within documents, [rows, 1, width, width] bool. Padding (-1) sees padding, never nothing."""
    width = documents.shape[1]
    causal = torch.ones(width, width, dtype=torch.bool, device=documents.device).tril()
    return ((documents[:, :, None] == documents[:, None, :]) & causal)[:, None]


def layout_is_packed(config: TrainConfig, target: Target) -> bool:
    """Whether documents may share rows of this target. Raises ConfigError for packing that leaks."""
    choice = config.target.layout
    if choice == "padded":
        return False
    safe = probe_packing(target)
    if choice == "packed" and not safe:
        raise ConfigError(
            "documents packed into one row would see each other in this target",
            where="target.layout",
            found="packed",
            remedy="set target.layout to auto or padded",
        )
    return safe


def probe_packing(target: Target) -> bool:
    """Whether packed documents come out of the target as they do alone, untouched by their neighbours."""
    if target.spec.attention_kinds != ("full_attention",):
        return False  # recurrent states run on across documents; windows would be lost in our mask
    lengths = [7, 12, 9]
    ids = torch.arange(1, sum(lengths) + 1) * 7919 % target.spec.vocab
    documents = torch.split(ids, lengths)
    together = _probe(target, documents)
    for packed, document in zip(together, documents, strict=True):
        (alone,) = _probe(target, (document,))
        error = (packed.float() - alone.float()).norm() / alone.float().norm()
        if float(error) > (1e-3 if alone.dtype == torch.float32 else 5e-2):
            return False
    changed = _probe(target, ((documents[0] + 1) % target.spec.vocab, *documents[1:]))
    # The same kernels on the same shapes: masked neighbours contribute exactly nothing.
    return all(torch.equal(a, b) for a, b in zip(together[1:], changed[1:], strict=True))


def _probe(target: Target, documents: tuple[Tensor, ...]) -> list[Tensor]:
    """Taps of each document: one alone in its row, or two packed into a row and a third in a padded one."""
    lengths = [len(document) for document in documents]
    packed = len(documents) > 1
    width = sum(lengths[:2])
    starts = (0, lengths[0], width) if packed else (0,)
    within = [torch.arange(length) for length in lengths]
    slots = torch.cat([start + positions for start, positions in zip(starts, within, strict=True)])
    layout = Layout(rows=2 if packed else 1, width=width, slots=slots, packed=packed)
    numbers = torch.arange(len(documents)).repeat_interleave(torch.tensor(lengths))
    rows = target.run_tokens(torch.cat(documents), torch.cat(within), numbers, layout)
    return list(torch.split(target.gather(rows), lengths))
