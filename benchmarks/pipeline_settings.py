"""What pipelines are timed on: documents, budgets and the configuration of a trainer for them.

Knows nothing of how anything is run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.drafter_case import CaseShape, block_size, make_documents
from dflash.contract.config import TrainConfig, load_config
from dflash.contract.model_shapes import random_shapes
from dflash.contract.split import Split
from dflash.data.documents import Documents


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One kind of load. Tokens."""

    name: str
    shortest: int
    longest: int
    budget: int
    anchors: int  # of each document, at most
    layers: int  # of the target
    largest_budget: int  # of all settings
    base: str = "qwen3-8b"  # the shape whose widths target and drafter have
    drafter_layers: int = 5

    def batches_for(self, big_batches: int) -> int:
        """Batches that take about as long as so many of `big`; twice that where windows are longer."""
        return big_batches * self.largest_budget // self.budget * (1 if self.uniform else 2)

    @property
    def uniform(self) -> bool:
        """All documents have one length, and a batch holds exactly one."""
        return self.shortest == self.longest == self.budget

    @property
    def batch_shape(self) -> CaseShape:
        """The one batch that a uniform setting repeats."""
        return CaseShape(1, self.budget, self.anchors)

    @property
    def target_name(self) -> str:
        """For `target.model`; makes the shape known when it has other layers than the published one."""
        shape = random_shapes[self.base]
        if self.layers == shape["num_hidden_layers"]:
            return f"random:{self.base}"
        name = f"{self.base}-{self.layers}-layers"
        random_shapes[name] = {**shape, "num_hidden_layers": self.layers}
        return f"random:{name}"


def settings(layers: int, *, tiny: bool) -> dict[str, Setting]:
    """big: one document of 8192 tokens a batch; small: of 2048; mixed: documents of 100 to 4000 tokens."""
    if tiny:
        own = {"layers": 8, "base": "tiny", "drafter_layers": 2, "anchors": 8}
        lengths = {"big": (256, 256, 256), "small": (64, 64, 64), "mixed": (24, 200, 256)}
    else:
        own = {"layers": layers}
        lengths = {"big": (8192, 8192, 8192), "small": (2048, 2048, 2048), "mixed": (100, 4000, 8192)}
    return {
        name: Setting(
            name=name,
            shortest=shortest,
            longest=longest,
            budget=budget,
            largest_budget=lengths["big"][2],
            **{"anchors": 512 if name == "big" else 128, **own},  # type: ignore[arg-type]
        )
        for name, (shortest, longest, budget) in lengths.items()
    }


def documents_for(setting: Setting, tokens: int) -> Documents:
    """At least that many tokens of random documents."""
    draw = np.random.default_rng(7)
    lengths: list[int] = []
    while sum(lengths) < tokens:
        lengths.append(int(draw.integers(setting.shortest, setting.longest + 1)))
    return make_documents(lengths, vocab=random_shapes[setting.base]["vocab_size"] - 1)


def configure(setting: Setting, split: str, changes: Sequence[str]) -> TrainConfig:
    """The trainer's configuration; a window is as many batches as there are drafters, or four when mixed."""
    drafters = Split.parse(split).drafters
    batches = drafters if setting.uniform else max(4, drafters)
    return load_config(
        None,
        [
            f"target.model={setting.target_name}",
            f"drafter.layers={setting.drafter_layers}",
            f"drafter.tap_count={setting.drafter_layers}",
            f"drafter.block_size={block_size}",
            f"objective.anchors_per_document={setting.anchors}",
            "objective.chunk_blocks=128",
            f"data.max_length={setting.longest}",
            f"pipeline.token_budget={setting.budget}",
            f"window.tokens={setting.budget * batches}",
            "run.epochs=1",
            "run.checkpoint_every=-1",
            "devices.memory_plan=warn",  # it counts a target in host memory, which is made on a GPU here
            f"split={split}",
            *changes,
        ],
    )
