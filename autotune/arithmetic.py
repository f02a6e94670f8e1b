"""Which configurations cannot fit into memory, told by arithmetic over shapes before anything is loaded.

The trainer's own ledger (`dflash/contract/memory_plan.py`) on two batches: the *least* that any documents can
come to, which is what rules a configuration out; and a *likely* one, of documents as long as they may be.
What cannot be known (a model whose weights are counted only once it is loaded) is said, and then nothing is
ruled out. Knows nothing of torch, of trials, or of what was measured.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Final

from autotune.machine import Machine
from dflash.contract.activations import BatchShape, DrafterShape, TargetShape
from dflash.contract.config import TrainConfig
from dflash.contract.errors import ConfigError
from dflash.contract.memory_plan import Facts, Ledger, host, plan_memory
from dflash.contract.model_shapes import (
    ModelShape,
    UnknownShape,
    read_model_shape,
    worth_compiling_hidden,
)
from dflash.contract.taps import resolve_taps

bytes_each: Final = {"float32": 4, "bfloat16": 2}
embedded_tokens: Final = 100_000  # the embedded text has more
bytes_of_a_token: Final = 16  # of a file of conversations, at most: keys, quotes and long words


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the places of a machine have. Unknown rules nothing out."""

    emulated: bool = False  # stages run on logical devices, in the host's memory
    gpu_bytes: int | None = None  # of the smallest GPU
    host_bytes: int | None = None

    @classmethod
    def of(cls, machine: Machine, *, emulated: bool) -> Limits:
        """Those of a machine."""
        sizes = [gpu.memory_bytes for gpu in machine.gpus if gpu.memory_bytes]
        return cls(
            emulated=emulated,
            gpu_bytes=None if emulated else min(sizes, default=None),
            host_bytes=machine.host_bytes,
        )


@dataclass(frozen=True)
class MemoryArithmetic:
    """Needs of configurations of one model, against what the places of a machine have."""

    shape: ModelShape
    limits: Limits

    def why_not(self, config: TrainConfig) -> str | None:
        """Why no documents whatever can make this fit, or None where that cannot be said."""
        if config.devices.memory_plan != "refuse":
            return None
        return self._shortage(self.ledger(config, likely=False), "at least ")

    def why_unlikely(self, config: TrainConfig) -> str | None:
        """Why it would not fit with the longest documents and all their blocks, or None where it would."""
        return self._shortage(self.ledger(config, likely=True), "")

    def needed_bytes(self, config: TrainConfig) -> dict[str, int]:
        """By place, with likely documents."""
        ledger = self.ledger(config, likely=True)
        return {place: ledger.needed_bytes(place) for place in ledger.places}

    def ledger(self, config: TrainConfig, *, likely: bool) -> Ledger:
        """The plan of a run with likely documents, or with the least there can be."""
        return plan_memory(self._facts(config, likely=likely))

    def _shortage(self, ledger: Ledger, least: str) -> str | None:
        limits = dict.fromkeys(ledger.places, self.limits.gpu_bytes) | {host: self.limits.host_bytes}
        missing = {
            place: ledger.needed_bytes(place) - limit
            for place in ledger.places
            if (limit := limits[place]) is not None
        }
        worst = max(missing, key=lambda place: missing[place], default=host)
        if missing.get(worst, 0) <= 0:
            return None
        largest, limit = ledger.at(worst)[0], limits[worst]
        assert limit is not None
        return (
            f"{least}{ledger.needed_bytes(worst) / 1e9:.1f} GB needed on {worst}, which has {limit / 1e9:.1f}"
            f" (most for {largest.name})"
        )

    def _facts(self, config: TrainConfig, *, likely: bool) -> Facts:
        targets, drafters = config.role_places
        name = (lambda _place: host) if self.limits.emulated else "cuda:{}".format
        worth = not self.limits.emulated and self.shape.hidden >= worth_compiling_hidden
        choice, drafter = config.transport_choice, self._drafter(config)
        return Facts(
            target=self._target(config),
            drafter=drafter,
            batch=self._batch(config, likely=likely),
            targets=tuple(name(place) for place in targets),
            drafters=tuple(name(place) for place in drafters),
            transport=replace(choice, path="peer") if choice.path == "auto" else choice,
            several_batches=config.window.tokens > config.pipeline.token_budget * config.split.drafters,
            compiled_target=config.target.compile == "on" or (config.target.compile == "auto" and worth),
            compiled_drafter=config.drafter.attention == "flex"
            or (config.drafter.attention == "auto" and worth),
            checkpointing=config.drafter.checkpointing == "layers",
            chunk_blocks=config.objective.chunk_blocks,
            token_budget=config.pipeline.token_budget,
            longest=config.data.max_length,
            data_tokens=config.window.tokens,
            prefetch_depth=config.pipeline.prefetch_depth,
            checkpoints=config.run.checkpoint_every >= 0,
        )

    def _target(self, config: TrainConfig) -> TargetShape:
        shape = self.shape
        layers = resolve_taps(config.drafter, shape.layers)[-1] + 1
        return TargetShape(
            hidden=shape.hidden,
            layers=layers,
            heads=shape.heads,
            kv_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            inner=max(shape.intermediate, shape.heads * shape.head_dim),
            vocab=shape.vocab,
            tied=shape.tied,
            body_parameters=shape.body_parameters(layers),
            loaded_parameters=shape.loaded_parameters,
            each_bytes=self._each_bytes(config.target.dtype),
        )

    def _drafter(self, config: TrainConfig) -> DrafterShape:
        shape, wanted = self.shape, config.drafter
        return DrafterShape(
            hidden=shape.hidden,
            layers=wanted.layers,
            heads=wanted.heads or shape.heads,
            kv_heads=wanted.kv_heads or shape.kv_heads,
            head_dim=wanted.head_dim or shape.head_dim,
            intermediate=wanted.intermediate or shape.intermediate,
            taps=len(resolve_taps(wanted, shape.layers)),
            block_size=wanted.block_size,
            kinds=2 if wanted.layer_types == "mixed" and wanted.layers > 1 else 1,
            vocab=shape.vocab,
            each_bytes=self._each_bytes(wanted.dtype),
        )

    def _each_bytes(self, dtype: str) -> int:
        return (
            bytes_each["float32" if self.limits.emulated else "bfloat16"]
            if dtype == "auto"
            else bytes_each[dtype]
        )

    def _batch(self, config: TrainConfig, *, likely: bool) -> BatchShape:
        """The largest batch of a window, by tokens."""
        tokens = likely_tokens(config) if likely else least_tokens(config)
        longest = config.data.max_length
        count = max(ceil(tokens / longest), 1)
        lengths = [tokens // count + (index < tokens % count) for index in range(count)]
        most = config.objective.anchors_per_document if likely else 1
        flat = config.target.layout == "flat" or (config.target.layout == "auto" and not self.shape.windowed)
        return BatchShape(
            documents=tuple((length, min(most, max(length - 1, 1))) for length in lengths),
            rows=1 if flat else count,
            width=tokens if flat else max(lengths),
            masked=config.target.layout == "packed",
        )


def likely_tokens(config: TrainConfig) -> int:
    """Tokens of a window's largest batch: packing spreads a window over as few batches as will do."""
    tokens = config.window.tokens + config.data.max_length // 2
    return ceil(tokens / ceil(tokens / config.pipeline.token_budget))


def least_tokens(config: TrainConfig) -> int:
    """Tokens that the largest batch has, however the documents fall.

    Packing leaves each batch less room than the longest document needs, and any two of them hold more than
    one budget.
    """
    if not _fills_a_window(config):
        return 1
    budget, window = config.pipeline.token_budget, config.window.tokens
    filled = max(budget - config.data.max_length, budget // 2, 1)
    return max(window // ceil((window + config.data.max_length) / filled), 1)


def set_up_arithmetic(base: TrainConfig, limits: Limits) -> MemoryArithmetic | UnknownShape:
    """The arithmetic for a model within limits, or why there is none."""
    shape = read_model_shape(base.target.model)
    if isinstance(shape, UnknownShape):
        return shape
    try:
        resolve_taps(base.drafter, shape.layers)
    except ConfigError as error:
        return UnknownShape(f"{error.what} ({error.where}: {error.found})")
    return MemoryArithmetic(shape, limits)


def _fills_a_window(config: TrainConfig) -> bool:
    """Whether the documents surely come to a window."""
    if not config.data.path:
        return config.window.tokens <= embedded_tokens
    try:
        size = Path(config.data.path).stat().st_size
    except OSError:
        return False
    return size >= bytes_of_a_token * config.window.tokens
