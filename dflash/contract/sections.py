"""The sections of a training run's configuration: their knobs with defaults, ranges and meaning.

Defaults are the published recipe (docs/recipe.md names the source of each). Knows nothing of how sections go
together or where their values come from.
"""

from __future__ import annotations

from dataclasses import dataclass

from dflash.contract.knobs import knob


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetConfig:
    """The frozen LLM whose hidden states teach the drafter."""

    model: str = knob(
        "random:tiny",
        help="directory, .gguf file, smollm2, hub name, or random:SHAPE with seeded weights "
        "(tiny, tiny-hybrid, qwen3-1.7b, qwen3-8b)",
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

    path: str = knob(
        "",
        help="JSONL, JSON, Parquet or Arrow file of conversations, or a directory of such; "
        "empty: the embedded text",
        neutral=False,
    )
    turns: str = knob(
        "all",
        help="answers that are trained: all of a conversation, or the last",
        choices=("all", "last"),
        neutral=False,
    )
    thinking: str = knob(
        "template",
        help="on, off: given to the chat template's switch for thinking; template: as it is by itself",
        choices=("template", "on", "off"),
        neutral=False,
    )
    max_length: int = knob(
        3072, help="tokens of a document, at most; see data.too_long", unit="tokens", low=8, neutral=False
    )
    too_long: str = knob(
        "cut",
        help="a conversation of more than data.max_length tokens is cut there, or its row is refused",
        choices=("cut", "refuse"),
        neutral=False,
    )
    seed: int = knob(
        0, help="seed of document order, of anchors and of what is held out", low=0, neutral=False
    )
    held_out: float = knob(
        -1.0,
        help="share of documents kept out of training and evaluated on, chosen by their text; "
        "-1: 0.01 of 1000 documents or more, else none",
        low=-1,
        high=0.5,
        neutral=False,
    )
    strict: bool = knob(False, help="stop at the first unusable row", neutral=False)
    cache: str = knob(
        "auto",
        help="directory of tokens kept between runs; auto: dflash-tune in the user's cache; off: keep none",
        neutral=True,
    )
    workers: int = knob(
        -1,
        help="processes that make tokens of conversations; 0: none of their own; -1: by cores and size of "
        "the data",
        low=-1,
        high=256,
        neutral=True,
    )
    row_seconds: float = knob(
        60.0,
        help="a row that takes longer than this to prepare ends the run",
        unit="s",
        low=0.1,
        neutral=True,
    )


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
    link_gigabytes_per_s: float = knob(50.0, help="logical peer link", unit="GB/s", low=1e-6, neutral=True)
    pinned_gigabytes_per_s: float = knob(
        25.0, help="logical link between device and pinned host memory", unit="GB/s", low=1e-6, neutral=True
    )
    pageable_gigabytes_per_s: float = knob(
        1.2, help="logical link between device and pageable host memory", unit="GB/s", low=1e-6, neutral=True
    )
    link_latency_us: float = knob(40.0, help="logical fixed cost of a copy", unit="µs", low=0, neutral=True)
    cpu_threads: int = knob(
        1, help="torch threads of the process on logical devices", low=1, high=1024, neutral=True
    )

    @property
    def declared_speeds(self) -> dict[str, float]:
        """GB/s of each path of bytes between logical devices."""
        return {
            "peer": self.link_gigabytes_per_s,
            "pinned": self.pinned_gigabytes_per_s,
            "pageable": self.pageable_gigabytes_per_s,
        }


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
        1000,
        help="steps between checkpoints, and one at the end; 0: at the end only; -1: never",
        unit="steps",
        low=-1,
        neutral=True,
    )
    evaluate_every: int = knob(
        100,
        help="steps between evaluations on documents held out, and once at the end; 0: never",
        unit="steps",
        low=0,
        neutral=True,
    )
    evaluate_documents: int = knob(
        64, help="documents held out that an evaluation looks at, at most", low=1, neutral=True
    )
    trackers: str = knob(
        "",
        help="where figures go besides the run directory: tensorboard, wandb, trackio; comma-separated",
        neutral=True,
    )
    keep_checkpoints: int = knob(2, help="checkpoints kept, newest first", low=1, neutral=True)
    resume: str = knob("", help="checkpoint or run directory to go on from", neutral=False)
    resume_data: str = knob(
        "same",
        help="when data, data.seed or window.tokens are not the checkpoint's: refuse; other: begin these",
        choices=("same", "other"),
        neutral=False,
    )
    resume_damaged: str = knob(
        "older",
        help="when a run's newest checkpoint is damaged: go on from the newest that is whole, or refuse",
        choices=("older", "refuse"),
        neutral=False,
    )
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
