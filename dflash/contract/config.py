"""The configuration of a training run: frozen sections of knobs, TOML in and out, dotted overrides.

Defaults are the published recipe (docs/recipe.md names the source of each); the embedded default in
`embedded.toml` shrinks it so that it trains on two CPU cores. Cross-field rules live here, so that
every command refuses the same things. Knows nothing of torch or of the machine.
"""

from __future__ import annotations

import dataclasses
import itertools
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from dflash.contract.errors import ConfigError
from dflash.contract.knobs import Knob, find_knob, flatten, knob, knobs_of, parse_assignments
from dflash.contract.split import Split


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetConfig:
    """The frozen LLM whose hidden states teach the drafter."""

    model: str = knob(
        "random:tiny",
        help="directory, hub name, or random:SHAPE (tiny, qwen3-1.7b, qwen3-8b) with seeded weights",
        neutral=False,
    )
    tokenizer: str = knob(
        "auto", help="directory or hub name; auto: the model's own, or the embedded one", neutral=False
    )
    dtype: str = knob(
        "auto",
        help="weights and activations; auto: bfloat16 on CUDA, float32 on CPU",
        choices=("auto", "float32", "bfloat16"),
        neutral=False,
    )
    attention: str = knob(
        "auto",
        help="attention kernel of the target; auto: variable-length on CUDA where it serves, else sdpa",
        choices=("auto", "varlen", "sdpa", "eager", "flash_attention_2"),
        neutral=True,
    )
    layout: str = knob(
        "auto",
        help="rows given to the target; auto: flat, else packed, where documents are proven not to leak, "
        "else padded",
        choices=("auto", "flat", "packed", "padded"),
        neutral=True,
    )
    compile: str = knob(
        "auto",
        help="compile the target's layers; auto: on CUDA, unless they are narrow",
        choices=("auto", "on", "off"),
        neutral=True,
    )
    seed: int = knob(0, help="seed of random:SHAPE weights", low=0, neutral=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterConfig:
    """The block-diffusion drafter. Zero means: as the target has it."""

    layers: int = knob(5, help="drafter layers", low=1, high=64, neutral=False)
    taps: tuple[int, ...] = knob(
        (), help="tapped target layers, ascending; empty: evenly spread by formula", neutral=False
    )
    tap_count: int = knob(5, help="number of taps when taps is empty", low=1, high=64, neutral=False)
    block_size: int = knob(
        16, help="slots per block; slot 0 is the anchor", unit="tokens", low=2, high=256, neutral=False
    )
    heads: int = knob(0, help="query heads; 0: as the target", low=0, neutral=False)
    kv_heads: int = knob(0, help="key/value heads; 0: as the target", low=0, neutral=False)
    head_dim: int = knob(0, help="head width; 0: as the target", low=0, neutral=False)
    intermediate: int = knob(0, help="MLP width; 0: as the target", low=0, neutral=False)
    layer_types: str = knob(
        "auto",
        help="auto: mixed for hybrid targets, full otherwise; mixed: sliding but the last, which is full",
        choices=("auto", "full", "sliding", "mixed"),
        neutral=False,
    )
    sliding_window: int = knob(2048, help="keys a sliding layer sees", unit="tokens", low=1, neutral=False)
    mask_token_id: int = knob(
        -1,
        help="embedding row of masked slots; -1: found from tokenizer and vocabulary",
        low=-1,
        neutral=False,
    )
    dtype: str = knob(
        "auto",
        help="weights; auto: bfloat16 with float32 masters on CUDA, float32 on CPU",
        choices=("auto", "float32", "bfloat16"),
        neutral=False,
    )
    seed: int = knob(0, help="seed of the initial drafter weights", low=0, neutral=False)
    attention: str = knob(
        "auto",
        help="flex: FlexAttention in compiled layers, needs a GPU; sdpa: by document; "
        "auto: flex on CUDA, unless layers are narrow",
        choices=("auto", "flex", "sdpa"),
        neutral=True,
    )
    checkpointing: str = knob(
        "none",
        help="layers: keep only what enters each layer and compute the rest again, for less memory",
        choices=("none", "layers"),
        neutral=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveConfig:
    """What the drafter is trained to do."""

    anchors_per_document: int = knob(
        512, help="blocks drawn per document and epoch, at most", low=1, unit="anchors", neutral=False
    )
    loss: str = knob(
        "dflash",
        help="dflash: cross entropy with exponential decay; dpace: D-PACE weights",
        choices=("dflash", "dpace"),
        neutral=False,
    )
    gamma: float = knob(
        -1.0, help="decay length; -1: by block size (16: 7, 10: 5, 8: 4); 0: no decay", low=-1, neutral=False
    )
    dpace_alpha: float = knob(0.5, help="D-PACE smoothing", low=0, high=1, neutral=False)
    chunk_blocks: int = knob(
        128, help="blocks whose logits exist at once; 0: all", low=0, unit="blocks", neutral=True
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerConfig:
    """AdamW with linear warm-up and cosine decay to zero."""

    lr: float = knob(6e-4, help="peak learning rate", low=0, neutral=False)
    warmup_ratio: float = knob(0.04, help="share of steps spent warming up", low=0, high=1, neutral=False)
    clip_norm: float = knob(1.0, help="global L2 gradient clip; 0: none", low=0, neutral=False)
    weight_decay: float = knob(0.0, help="decoupled weight decay", low=0, neutral=False)
    beta1: float = knob(0.9, help="first moment decay", low=0, high=0.99999, neutral=False)
    beta2: float = knob(0.999, help="second moment decay", low=0, high=0.9999999, neutral=False)
    eps: float = knob(1e-8, help="denominator term", low=0, neutral=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig:
    """Which conversations, in which order."""

    path: str = knob("", help="JSONL file of conversations; empty: the embedded text", neutral=False)
    max_length: int = knob(3072, help="documents are cut here", unit="tokens", low=8, neutral=False)
    seed: int = knob(0, help="seed of document order and anchors", low=0, neutral=False)
    strict: bool = knob(False, help="stop at the first unusable row", neutral=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowConfig:
    """The documents of one optimizer step."""

    tokens: int = knob(
        65536,
        help="a window closes at the first document end at or past this many tokens",
        unit="tokens",
        low=16,
        neutral=False,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineConfig:
    """How the work is spread."""

    split: str = knob(
        "1-1",
        help="targets-drafters, for example 3-1; colocated-N: N devices, each a target and a drafter",
        neutral=True,
        short="split",
    )
    schedule: str = knob(
        "overlapped",
        help="lockstep: all targets forward, then all drafters step, behind a barrier; a yardstick",
        choices=("overlapped", "lockstep"),
        neutral=True,
    )
    token_budget: int = knob(8192, help="tokens in one batch, at most", unit="tokens", low=16, neutral=True)
    prefetch_depth: int = knob(8, help="batches waiting for targets, at most", low=1, high=1024, neutral=True)
    switch_interval_ms: float = knob(
        0.1,
        help="how long a thread that wants the GIL lets the holder go on; Python's own default is 5",
        unit="ms",
        low=0.01,
        high=100,
        neutral=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportConfig:
    """How hidden states travel from target to drafter."""

    preset: str = knob(
        "auto",
        help="queue, path and dispatch at once; see docs/transports.md",
        choices=("host", "shared", "pinned", "peer", "auto"),
        neutral=True,
        short="transport",
    )
    queue: str = knob(
        "preset",
        help="one queue for all drafters, or one each",
        choices=("preset", "shared", "per_drafter"),
        neutral=True,
    )
    path: str = knob(
        "preset",
        help="the way of the bytes; auto: for each pair of devices the fastest that is proven right",
        choices=("preset", "pageable", "pinned", "peer", "auto"),
        neutral=True,
    )
    dispatch: str = knob(
        "preset",
        help="which drafter a batch goes to; local: to the one of its target's number",
        choices=("preset", "round_robin", "least_depth", "local"),
        neutral=True,
    )
    trim: bool = knob(
        False, help="leave out states that no anchor reads, behind the last of a document", neutral=True
    )
    depth: int = knob(2, help="batches waiting in each queue, at most", low=1, high=1024, neutral=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicesConfig:
    """Where stages run. Logical devices are CPU threads whose links are paced to declared speeds."""

    kind: str = knob(
        "auto",
        help="auto: CUDA when present, else logical",
        choices=("auto", "cuda", "logical"),
        neutral=True,
    )
    memory_plan: str = knob(
        "refuse",
        help="what to do with a run that cannot fit: refuse it before loading, or warn and go on",
        choices=("refuse", "warn"),
        neutral=True,
    )
    gpus: int = knob(
        0,
        help="devices the roles spread over, at most; 0: one each; fewer: roles share them, wrapping round",
        low=0,
        high=1024,
        neutral=True,
    )
    link_gbps: float = knob(50.0, help="logical peer link", unit="GB/s", low=1e-6, neutral=True)
    pinned_gbps: float = knob(
        25.0, help="logical link between device and pinned host memory", unit="GB/s", low=1e-6, neutral=True
    )
    pageable_gbps: float = knob(
        1.2, help="logical link between device and pageable host memory", unit="GB/s", low=1e-6, neutral=True
    )
    link_latency_us: float = knob(40.0, help="logical fixed cost of a copy", unit="µs", low=0, neutral=True)
    cpu_threads: int = knob(
        1, help="torch threads of the process on logical devices", low=1, high=1024, neutral=True
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """How long, and what is kept."""

    epochs: int = knob(1, help="passes over the documents", low=1, high=10_000, neutral=False)
    max_steps: int = knob(
        0, help="stop after this many optimizer steps in all; 0: never", low=0, neutral=False
    )
    max_seconds: float = knob(
        0.0, help="stop at the first window end past this time; 0: never", unit="s", low=0, neutral=False
    )
    console_every_s: float = knob(2.0, help="time between console lines", unit="s", low=0.1, neutral=True)
    checkpoint_every: int = knob(
        0,
        help="steps between checkpoints; 0: at the end only; -1: never",
        unit="steps",
        low=-1,
        neutral=True,
    )
    keep_checkpoints: int = knob(2, help="checkpoints kept, newest first", low=1, neutral=True)
    resume: str = knob("", help="checkpoint or run directory to go on from", neutral=False)
    deterministic: bool = knob(False, help="deterministic kernels only", neutral=True)


@dataclass(frozen=True, slots=True)
class TransportChoice:
    """A transport in full: what a preset and its overrides come to."""

    queue: str
    path: str
    dispatch: str
    depth: int

    def __str__(self) -> str:
        return f"{self.queue}/{self.path}/{self.dispatch}/depth {self.depth}"


presets = {
    "host": ("shared", "pageable", "round_robin"),
    "shared": ("shared", "peer", "round_robin"),
    "pinned": ("per_drafter", "pinned", "least_depth"),
    "peer": ("per_drafter", "peer", "least_depth"),
    "auto": ("per_drafter", "auto", "least_depth"),
}


colocated_transports = tuple(("per_drafter", path, "local") for path in ("peer", "auto"))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """Everything a run depends on."""

    target: TargetConfig = field(default_factory=TargetConfig)
    drafter: DrafterConfig = field(default_factory=DrafterConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    data: DataConfig = field(default_factory=DataConfig)
    window: WindowConfig = field(default_factory=WindowConfig)
    pipeline: PipelineConfig = field(default_factory=PipelineConfig)
    transport: TransportConfig = field(default_factory=TransportConfig)
    devices: DevicesConfig = field(default_factory=DevicesConfig)
    run: RunConfig = field(default_factory=RunConfig)

    def __post_init__(self) -> None:
        _check_together(self)

    @property
    def split(self) -> Split:
        return Split.parse(self.pipeline.split)

    @property
    def device_count(self) -> int:
        """Devices the split's roles spread over: one each, or fewer that they share."""
        needed, limit = self.split.devices, self.devices.gpus
        return min(needed, limit) if limit else needed

    @property
    def transport_choice(self) -> TransportChoice:
        """Queue, path and dispatch in force. A colocated split has its own: states do not leave a device.

        Sums and weights do, so that `auto` goes round bad pairs there as well.
        """
        chosen = (self.transport.queue, self.transport.path, self.transport.dispatch)
        queue, path, dispatch = (
            own if own != "preset" else given
            for own, given in zip(chosen, presets[self.transport.preset], strict=True)
        )
        if self.split.colocated:
            queue, path, dispatch = colocated_transports[path == "auto"]
        return TransportChoice(queue, path, dispatch, self.transport.depth)

    @property
    def gamma(self) -> float:
        """The decay length in force; 0 means no decay."""
        known = {16: 7.0, 10: 5.0, 8: 4.0}
        if self.objective.gamma >= 0:
            return self.objective.gamma
        return known.get(self.drafter.block_size, self.drafter.block_size * 7 / 16)

    def values(self) -> dict[str, Any]:
        """{dotted path: value} of every knob."""
        return flatten(dataclasses.asdict(self))

    def replacing(self, changes: Mapping[str, Any]) -> TrainConfig:
        """A copy with the knobs in `changes` (by dotted path) set and everything checked again."""
        return from_values({**self.values(), **changes})

    def to_toml(self) -> str:
        """The whole configuration as TOML that `load_config` reads back to an equal one."""
        lines: list[str] = []
        for section, body in dataclasses.asdict(self).items():
            lines += [f"[{section}]", *(f"{k} = {_toml_value(v)}" for k, v in body.items()), ""]
        return "\n".join(lines)


all_knobs: tuple[Knob, ...] = knobs_of(TrainConfig)


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return "[" + ", ".join(str(item) for item in value) + "]"
    if isinstance(value, str):
        body = value.replace("\\", "\\\\").replace('"', '\\"')
        return '"' + "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in body) + '"'
    return repr(value)


def from_values(values: Mapping[str, Any]) -> TrainConfig:
    """A checked configuration from {dotted path: value}; knobs not named keep their defaults."""
    sections: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        found = find_knob(name, all_knobs)
        section, leaf = found.path.split(".")
        sections.setdefault(section, {})[leaf] = found.check(value)
    types = {f.name: f.default_factory for f in dataclasses.fields(TrainConfig)}
    return TrainConfig(**{name: types[name](**body) for name, body in sections.items()})  # type: ignore[operator]


def load_config(path: Path | None, assignments: Sequence[str] = ()) -> TrainConfig:
    """The configuration in a TOML file (None: the embedded default) with `knob=value` overrides."""
    if path is None:
        text, where = embedded_toml(), "embedded default"
    else:
        where = str(path)
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise ConfigError("there is no such configuration file", where=where) from None
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"the configuration file cannot be read: {error}", where=where) from None
    try:
        values = flatten(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"the configuration is not valid TOML: {error}", where=where) from None
    return from_values({**_by_path(values), **parse_assignments(assignments, all_knobs)})


def _by_path(values: Mapping[str, Any]) -> dict[str, Any]:
    return {find_knob(name, all_knobs).path: value for name, value in values.items()}


def embedded_toml() -> str:
    """The text of the embedded default configuration."""
    return resources.files("dflash.contract").joinpath("embedded.toml").read_text(encoding="utf-8")


def _check_together(config: TrainConfig) -> None:
    split, budget = config.split, config.pipeline.token_budget
    if budget < config.data.max_length:
        raise ConfigError(
            "the token budget is smaller than the longest document",
            where="pipeline.token_budget",
            found=budget,
            expected=f"data.max_length ({config.data.max_length}) or more",
            remedy="raise pipeline.token_budget or lower data.max_length",
        )
    if config.data.max_length < config.drafter.block_size:
        raise ConfigError(
            "documents are cut shorter than one block",
            where="data.max_length",
            found=config.data.max_length,
            expected=f"drafter.block_size ({config.drafter.block_size}) or more",
        )
    if config.window.tokens < budget * split.drafters:
        raise ConfigError(
            "a window must hold at least one budget for each drafter",
            where="window.tokens",
            found=config.window.tokens,
            expected=f"{budget} × {split.drafters} drafters = {budget * split.drafters} or more",
            remedy="raise window.tokens, lower pipeline.token_budget, or use fewer drafters",
        )
    _check_colocated(config)
    taps = config.drafter.taps
    if any(b <= a for a, b in itertools.pairwise(taps)) or any(t < 0 for t in taps):
        raise ConfigError("taps must be ascending layer numbers, each once", where="drafter.taps", found=taps)


def _check_colocated(config: TrainConfig) -> None:
    """What must not be asked of a split that trains each batch where it was made."""
    if not config.split.colocated:
        return
    given = (config.transport.queue, config.transport.path, config.transport.dispatch)
    for name, own, known in zip(
        ("queue", "path", "dispatch"), given, zip(*colocated_transports, strict=True), strict=True
    ):
        if own not in ("preset", *known):
            raise ConfigError(
                "a colocated split copies nothing: each batch is trained where it was made",
                where=f"transport.{name}",
                found=own,
                expected=" or ".join(dict.fromkeys(("preset", *known))),
                remedy=f"leave transport.{name} alone, or use split "
                f"{config.split.targets}-{config.split.drafters} with devices.gpus",
            )
