"""The drafter steps that benchmarks time: shapes, tokens and weights, made on the device without a target.

A case is one window of one batch: documents of equal length with random tokens and random tapped states,
batched and given anchors by the trainer's own code. The last block of each document is not supervised, so
that no block runs past the end of its document, which trainers treat differently.

Shapes: T context tokens, A anchors, b block size, Q = A*b block tokens, F taps, H hidden width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dflash.batch import Batch
from dflash.contract.config import TrainConfig, load_config
from dflash.contract.taps import resolve_taps
from dflash.cuda import CudaDevice
from dflash.data.documents import Books, Document, Documents
from dflash.devices import Device, LogicalDevice
from dflash.drafter import Drafter, DrafterSpec
from dflash.replicas import Replica, ReplicaGroup
from dflash.target_shapes import TargetSpec, random_config
from dflash.window import batches

block_size = 16
seed = 1
std = 0.02  # of all random weights
total_steps = 1000  # of the learning rate's schedule


@dataclass(frozen=True, slots=True)
class CaseShape:
    """Documents of a batch, their length and how many anchors each gets."""

    documents: int
    length: int
    anchors: int

    @property
    def tokens(self) -> int:
        return self.documents * self.length


shapes = {"a": CaseShape(1, 8192, 512), "b": CaseShape(4, 2048, 512), "c": CaseShape(1, 32768, 2048)}
tiny_shapes = {"a": CaseShape(1, 128, 8), "b": CaseShape(4, 64, 4), "c": CaseShape(1, 256, 16)}


@dataclass(frozen=True, slots=True)
class Case:
    """Everything a drafter step starts from. Weights are those all contenders begin with."""

    name: str
    shape: CaseShape
    config: TrainConfig
    device: Device
    target: TargetSpec
    spec: DrafterSpec
    batch: Batch
    taps: Tensor  # [T, F*H]
    embedding: Tensor  # [V, H]
    head: Tensor  # [V, H]
    weights: dict[str, Tensor]  # of the drafter

    @property
    def dtype(self) -> torch.dtype:
        return self.taps.dtype


def open_device() -> Device:
    """The first GPU, or the CPU where there is none; bound to the calling thread."""
    device: Device = CudaDevice(0) if torch.cuda.is_available() else LogicalDevice(0)
    device.bind_thread()
    return device


def configure(shape: CaseShape, *, tiny: bool, changes: Sequence[str] = ()) -> TrainConfig:
    """The trainer's configuration of a case: a drafter of 5 layers on 5 taps of the Qwen3-8B shape."""
    layers = 2 if tiny else 5
    return load_config(
        None,
        [
            f"target.model=random:{'tiny' if tiny else 'qwen3-8b'}",
            f"drafter.layers={layers}",
            f"drafter.tap_count={layers}",
            f"drafter.block_size={block_size}",
            f"objective.anchors_per_document={shape.anchors}",
            "objective.chunk_blocks=128",
            f"data.max_length={shape.length}",
            f"pipeline.token_budget={shape.tokens}",
            f"window.tokens={shape.tokens}",
            "run.epochs=1",
            *changes,
        ],
    )


def build_case(
    name: str, device: Device, *, tiny: bool, shape: CaseShape | None = None, changes: Sequence[str] = ()
) -> Case:
    """The case called `name`, or of `shape`, on `device`: bfloat16 on a GPU, float32 on the CPU."""
    shape = shape or (tiny_shapes if tiny else shapes)[name]
    config = configure(shape, tiny=tiny, changes=changes)
    place = device.torch_device
    dtype = torch.bfloat16 if place.type == "cuda" else torch.float32
    target = TargetSpec.of(random_config(config.target.model.removeprefix("random:")), config.target.model)
    taps = resolve_taps(config.drafter, target.layers)
    spec = DrafterSpec.of(config.drafter, target, taps, mask_token_id=target.vocab - 1)
    generator = torch.Generator(place).manual_seed(seed)

    def draw(*size: int, scale: float = std) -> Tensor:
        return torch.empty(size, device=place, dtype=dtype).normal_(0.0, scale, generator=generator)

    with torch.device("meta"):
        shapes_of = {key: value.shape for key, value in Drafter(spec).state_dict().items()}
    weights = {
        key: torch.ones(size, device=place, dtype=dtype) if len(size) == 1 else draw(*size)
        for key, size in shapes_of.items()
    }
    documents = make_documents([shape.length] * shape.documents, vocab=target.vocab - 1)
    return Case(
        name=name,
        shape=shape,
        config=config,
        device=device,
        target=target,
        spec=spec,
        batch=only_batch(documents, config),
        taps=draw(shape.tokens, len(taps) * spec.hidden, scale=1.0),
        embedding=draw(spec.vocab, spec.hidden),
        head=draw(spec.vocab, spec.hidden),
        weights=weights,
    )


def make_documents(lengths: Sequence[int], *, vocab: int) -> Documents:
    """Documents of random tokens below `vocab`, supervised up to their last block."""
    draw = np.random.default_rng(seed)
    items = []
    for number, length in enumerate(lengths):
        mask = np.ones(length, np.bool_)
        mask[-block_size:] = False
        ids = draw.integers(0, vocab, length, dtype=np.int32)
        items.append(Document(ids=ids, loss_mask=mask, file="random", line=number + 1))
    supervised = sum(int(item.loss_mask.sum()) for item in items) / sum(lengths)
    books = Books(
        rows_read=len(items),
        rows_usable=len(items),
        refused=(),
        warnings=(),
        supervised_share=supervised,
        distinct_texts=len(items),
    )
    return Documents(items=tuple(items), books=books)


def only_batch(documents: Documents, config: TrainConfig) -> Batch:
    """The one batch of the one window that all `documents` make."""
    (batch,) = batches(documents, config, layout="packed")
    return batch


def build_group(case: Case, changes: Sequence[tuple[str, object]] = ()) -> ReplicaGroup:
    """Our drafter with the case's weights, ready to train; `changes` are knobs on top of the case's."""
    config = case.config.replacing(dict(changes))
    with torch.device("meta"):
        drafter = Drafter(case.spec)
    drafter.load_state_dict({name: weight.clone() for name, weight in case.weights.items()}, assign=True)
    replica = Replica(drafter, case.embedding, case.head, case.device, config)
    return ReplicaGroup([replica], config, total_steps)


def step_flops(case: Case) -> float:
    """Floating-point operations that a step needs, without anything computed twice.

    Context states and the head need no gradient; attention counts the keys that the mask lets each row see.
    """
    spec = case.spec
    hidden, queries, keys = spec.hidden, spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    block_rows = case.batch.labels.numel()
    context = 4 * len(spec.taps) * hidden**2 + spec.layers * 6 * 2 * hidden * keys
    layer = 2 * hidden * queries + 2 * hidden * keys + 3 * hidden * spec.intermediate
    block = 6 * spec.layers * layer + 4 * hidden * spec.vocab
    seen = int(case.batch.positions[case.batch.anchors].sum()) * block_size + block_rows * block_size
    return case.batch.tokens * context + block_rows * block + 14.0 * queries * spec.layers * seen
