"""What the pages on tuning run: a base configuration, how its trainer is started, requests for trials.

Two kinds: the Qwen3-8B shape on GPUs, and a tiny one on logical devices that take their time by sleeping.
Knows nothing of what is measured.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.runner import Request
from autotune.study import trial_length
from autotune.telemetry import Values
from benchmarks.shaped_trainer import register_shape
from dflash.contract.config import TrainConfig, load_config

longest = {False: 700, True: 60}  # document, by `tiny`
paced_links = (  # the tiny shape's states have 640 bytes a token
    "devices.pageable_gigabytes_per_s=0.005",
    "devices.pinned_gigabytes_per_s=0.008",
    "devices.link_gigabytes_per_s=0.02",
)


@dataclass(frozen=True, slots=True)
class TuningCase:
    """One work on one machine. `most_tokens`: of a batch on paced devices, before it runs out of memory."""

    tiny: bool
    layers: int = 18  # of the Qwen3-8B shape's target
    gpus: int = 2  # that there are; with one, all roles share it
    most_tokens: int = 0
    changes: tuple[str, ...] = ()  # knobs, as on a command line

    @property
    def trainer(self) -> list[str]:
        """A command line that ends in `run …` or `serve …`."""
        line = [sys.executable, str(Path(__file__).with_name("shaped_trainer.py"))]
        if self.tiny:
            line += ["--lengths", "24:60", "--documents", "600", "--pace"]
            line += ["--most-tokens", str(self.most_tokens)] if self.most_tokens else []
        return line

    def config(self, *changes: str) -> TrainConfig:
        """The base with changes."""
        name = "tiny-2-layers" if self.tiny else f"qwen3-8b-{self.layers}-layers"
        own = (
            (
                "drafter.layers=1",
                "drafter.tap_count=1",
                "drafter.block_size=4",
                "objective.anchors_per_document=1",
                "pipeline.token_budget=128",
                "window.tokens=256",
                "devices.kind=logical",
                *paced_links,
            )
            if self.tiny
            else (
                "drafter.layers=5",
                "drafter.block_size=16",
                "objective.anchors_per_document=16",
                "pipeline.token_budget=2048",
                "window.tokens=4096",
                "devices.memory_plan=warn",
                *(["devices.gpus=1"] if self.gpus == 1 else []),
            )
        )
        return load_config(
            None,
            [
                f"target.model={register_shape(name)}",
                f"data.max_length={longest[self.tiny]}",
                "split=1-1",
                "pipeline.prefetch_depth=2",
                "transport=peer",
                "run.epochs=200",
                "run.checkpoint_every=-1",
                "run.console_every_s=30",
                *own,
                *self.changes,
                *changes,
            ],
        )

    @staticmethod
    def request(root: Path, number: int, config: TrainConfig, seconds: float, **how: Any) -> Request:
        """A trial of `config` in a directory of its own below `root`."""
        place = root / f"{number:03d}"
        place.mkdir(parents=True)
        values: Values = config.values()
        config = config.replacing(trial_length(seconds))
        return Request(
            values=values, config=config, seconds=seconds, run_path=place / "run", number=number, **how
        )
