"""The frozen target: loaded once on the CPU, copied to each device, tapped while it runs.

Knows nothing of drafters, documents' choice or of where the taps go next.

Shapes: T real tokens of a batch, D documents, F taps, H hidden width, V vocabulary.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from dflash.attention import upload
from dflash.batch import Batch, Layout
from dflash.compiling import is_worth_compiling, working
from dflash.contract.config import TrainConfig
from dflash.contract.errors import ConfigError
from dflash.contract.taps import resolve_taps
from dflash.devices import resolve_dtype
from dflash.target_attention import attends_dense, use_varlen, varlen, varlen_kernel, varlen_obstacle
from dflash.target_body import compile_layers, copy_to, cut
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
    attention: str  # as transformers calls it: `varlen`, "sdpa", "eager", "flash_attention_2"
    compile: bool  # whether copies run compiled


def load_target(config: TrainConfig, device_type: str = "cpu") -> LoadedTarget:
    """The target that `config.target` names, for devices of that type. Leaves the global generator alone.

    Raises ConfigError when the model cannot be had or its attention is not for it, DeviceError when its
    attention kernel is not installed.
    """
    chosen = config.target
    attention = "sdpa" if chosen.attention in ("auto", "varlen") else chosen.attention
    dtype = resolve_dtype(chosen.dtype, device_type)
    weights = read_target(chosen.model, seed=chosen.seed, dtype=dtype, attention=attention)
    spec = TargetSpec.of(weights.config, chosen.model)
    if _takes_varlen(chosen.attention, spec, dtype, device_type) and use_varlen(weights.body):
        attention = varlen
    taps = resolve_taps(config.drafter, spec.layers)
    cut(weights.body, taps[-1] + 1)
    return LoadedTarget(
        body=weights.body.requires_grad_(False).eval(),
        embedding=weights.embedding,
        head=weights.head,
        spec=spec,
        taps=taps,
        attention=attention,
        compile=runs_compiled(chosen.compile, spec, device_type),
    )


def _takes_varlen(choice: str, spec: TargetSpec, dtype: torch.dtype, device_type: str) -> bool:
    if choice not in ("auto", "varlen"):
        return False
    obstacle = varlen_obstacle(spec, dtype, device_type)
    if choice == "varlen" and obstacle is not None:
        raise ConfigError(
            "this target cannot have variable-length attention here",
            where="target.attention",
            found=obstacle,
            remedy="set target.attention to auto or sdpa",
        )
    return obstacle is None and (choice == "varlen" or device_type == "cuda")


def runs_compiled(choice: str, spec: TargetSpec, device_type: str) -> bool:
    """Whether copies of such a target run compiled; `choice` of target.compile."""
    return choice == "on" or (choice == "auto" and is_worth_compiling(spec.hidden, device_type))


@dataclass(slots=True)
class _Buffer:
    """Where the taps of a batch are written while its layers run."""

    taps: Tensor  # [T, F*H]
    slots: Tensor | None  # [T] int64, where the real tokens sit in the rows; None: rows are just those
    written: int = 0

    def write(self, index: int, output: Tensor) -> None:
        """Take in the tap `index`: rows [rows, width, H]."""
        width = output.shape[-1]
        columns = self.taps[:, index * width : (index + 1) * width]
        if self.slots is None:
            columns.copy_(output.reshape(-1, width))
        else:
            torch.index_select(output.reshape(-1, width), 0, self.slots, out=columns)
        self.written += 1


class Target:
    """A copy of a loaded target on one device. Used by one thread at a time; several copies run at once."""

    def __init__(self, loaded: LoadedTarget, device: torch.device) -> None:
        self.spec, self.device = loaded.spec, device
        self.varlen = loaded.attention == varlen
        self._masked = loaded.attention != "flash_attention_2"  # its kernel reads positions, not masks
        self._body = copy_to(loaded.body, device)
        self.dtype = next(self._body.parameters()).dtype
        # The kernel in words, and whether long documents of a flat row get one of their own.
        self.kernel, self.dense = loaded.attention, False
        if self.varlen:
            self.kernel = f"varlen: {varlen_kernel(device, self.dtype, self.spec)}"
            self.dense = attends_dense(device, self.dtype, self.spec)
        self.compiled = compile_layers(self._body) if loaded.compile else []
        self._taps, self._buffer = len(loaded.taps), cast(_Buffer | None, None)
        layers = cast(nn.ModuleList, self._body.layers)
        for index, tap in enumerate(loaded.taps):
            layers[tap].register_forward_hook(partial(self._catch, index))

    def _catch(self, index: int, _layer: nn.Module, _inputs: object, output: Tensor | tuple[Tensor]) -> None:
        assert self._buffer is not None
        self._buffer.write(index, output if isinstance(output, Tensor) else output[0])

    @property
    def body(self) -> nn.Module:
        """The layers that run, on this device; not to be changed."""
        return self._body

    def forward(self, batch: Batch) -> Tensor:
        """The tapped states of a batch, of those tokens that are kept; see `run`."""
        return self.run(batch.input_ids, batch.positions, batch.lengths, batch.layout, batch.kept)

    def run(
        self,
        input_ids: Tensor,
        positions: Tensor,
        lengths: tuple[int, ...],
        layout: Layout,
        kept: Tensor | None = None,
    ) -> Tensor:
        """The states of the real tokens side by side, [T, F*H] on this device, without gradient.

        Or of some of them: `kept` [K] int64 on the CPU, ascending.
        `input_ids` and `positions`, each [T] int64 on the CPU, are those of the documents of these lengths,
        which lie back to back. On CUDA returns once the work is enqueued.
        """
        with torch.no_grad(), working():
            if self.varlen and layout.flat:
                inputs, slots = self._flat_inputs(input_ids, positions, lengths), None
            else:
                inputs, slots = self._row_inputs(input_ids, positions, lengths, layout)
            if kept is not None:
                rows = upload(kept, self.device)
                slots = rows if slots is None else slots[rows]
            count = len(input_ids if kept is None else kept)
            taps = torch.empty(count, self._taps * self.spec.hidden, dtype=self.dtype, device=self.device)
            buffer = self._buffer = _Buffer(taps, slots)
            try:
                self._body(**inputs, use_cache=False)
            finally:
                self._buffer = None
        if buffer.written != self._taps:
            raise RuntimeError(f"{buffer.written} of {self._taps} tapped layers ran")
        return taps

    def _flat_inputs(self, input_ids: Tensor, positions: Tensor, lengths: tuple[int, ...]) -> dict[str, Any]:
        starts = torch.tensor([0, *itertools.accumulate(lengths)])
        sizes = [len(input_ids), len(positions), len(starts)]
        # One copy instead of three.
        ids, places, begins = torch.split(
            upload(torch.cat([input_ids, positions, starts]), self.device), sizes
        )
        return {
            "input_ids": ids[None],
            "position_ids": places[None],
            "document_starts": begins.int(),
            "host_document_starts": starts,
        }

    def _row_inputs(
        self, input_ids: Tensor, positions: Tensor, lengths: tuple[int, ...], layout: Layout
    ) -> tuple[dict[str, Any], Tensor]:
        """Arguments of the body, and where the real tokens sit in its rows: [T] int64."""
        numbers = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
        both = upload(torch.stack([layout.slots, input_ids, positions, numbers]), self.device)
        slots, ids, places, documents = both
        shape = (layout.rows, layout.width)
        inputs: dict[str, Any] = {"input_ids": _in_rows(ids, slots, shape, 0)}
        if layout.packed:
            inputs["position_ids"] = _in_rows(places, slots, shape, 0)
            if self._masked:
                inputs["attention_mask"] = _packed_mask(_in_rows(documents, slots, shape, -1))
        return inputs, slots


def _in_rows(values: Tensor, slots: Tensor, shape: tuple[int, int], fill: int) -> Tensor:
    """`values` [T] placed at `slots` of rows × width, `fill` where padding is."""
    rows = torch.full((shape[0] * shape[1],), fill, dtype=values.dtype, device=values.device)
    return rows.index_copy_(0, slots, values).view(shape)


def _packed_mask(documents: Tensor) -> Tensor:
    """Causal within documents, [rows, 1, width, width] bool. Padding (-1) sees padding, never nothing."""
    width = documents.shape[1]
    causal = torch.ones(width, width, dtype=torch.bool, device=documents.device).tril()
    return ((documents[:, :, None] == documents[:, None, :]) & causal)[:, None]
