"""The runs that `story_table.py` makes on four and on eight GPUs, and the work that they are runs of.

Knows nothing of how runs are made or read.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.shaped_trainer import register_shape
from benchmarks.tuning_case import paced_links
from dflash.contract.config import TrainConfig, load_config


@dataclass(frozen=True, slots=True)
class StoryRun:
    """One row. `bare`: recorded without samplers, for what they cost."""

    name: str
    split: str
    changes: tuple[str, ...]
    bare: bool = False


def _host(depth: int) -> tuple[str, ...]:
    return "transport=host", f"transport.depth={depth}"


peer: Final = ("transport=peer",)
base: Final = StoryRun("base", "1-1", peer)  # of all forecasts
# Runs of one split side by side: they share a process.
stories: Final[dict[int, tuple[StoryRun, ...]]] = {
    4: (
        StoryRun("lockstep 2-2", "2-2", (*peer, "schedule=lockstep")),
        StoryRun("shared 2-2", "2-2", ("transport=shared",)),
        StoryRun("peer 2-2", "2-2", peer),
        StoryRun("host 60 deep 3-1", "3-1", _host(60)),
        StoryRun("pinned 3-1", "3-1", ("transport=pinned",)),
        StoryRun("peer 3-1", "3-1", peer),
        StoryRun("colocated-4", "colocated-4", ()),
    ),
    8: (
        StoryRun("host 60 deep 5-3", "5-3", _host(60)),
        StoryRun("peer 5-3", "5-3", peer),
        StoryRun("peer 5-3, round robin", "5-3", (*peer, "transport.dispatch=round_robin")),
        StoryRun("peer 5-3, no samplers", "5-3", peer, bare=True),
        StoryRun("peer 6-2", "6-2", peer),
        StoryRun("peer 7-1", "7-1", peer),
        StoryRun("colocated-8", "colocated-8", ()),
    ),
}


@dataclass(frozen=True, slots=True)
class StoryCase:
    """The work: the Qwen3-8B shape, documents of mixed lengths, anchors by document. Or a tiny one, paced."""

    cards: int
    tiny: bool
    layers: int = 36  # of the target
    changes: tuple[str, ...] = ()  # knobs, as on a command line

    @property
    def trainer(self) -> list[str]:
        """A command line that ends in `serve …`."""
        page = [sys.executable, str(Path(__file__).with_name("shaped_trainer.py"))]
        if self.tiny:
            return [*page, "--lengths", "24:60", "--documents", "600", "--pace"]
        return [*page, "--lengths", "100:4000", "--documents", "4000"]

    @property
    def choices(self) -> dict[str, tuple[Any, ...]]:
        """What the search at the end may choose from."""
        splits = dict.fromkeys(run.split for run in stories[self.cards])
        return {
            "pipeline.split": tuple(splits),
            "pipeline.token_budget": (64, 128) if self.tiny else (4096, 8192, 16384),
            "transport.preset": ("pinned", "peer"),
            "transport.depth": (2, 4),
        }

    def config(self, run: StoryRun) -> TrainConfig:
        """A run's configuration. Its window has room for the largest budget on every card."""
        name = "tiny-2-layers" if self.tiny else f"qwen3-8b-{self.layers}-layers"
        largest = max(self.choices["pipeline.token_budget"])
        own = (
            (
                "drafter.layers=1",
                "drafter.tap_count=1",
                "drafter.block_size=4",
                "objective.anchors_per_document=1",
                "data.max_length=60",
                "pipeline.token_budget=128",
                "devices.kind=logical",
                *paced_links,
            )
            if self.tiny
            else (
                "drafter.layers=5",
                "drafter.block_size=16",
                "objective.anchors_per_document=128",
                "data.max_length=4000",
                "pipeline.token_budget=8192",
                "devices.memory_plan=warn",
            )
        )
        return load_config(
            None,
            [
                f"target.model={register_shape(name)}",
                f"window.tokens={largest * self.cards}",
                f"split={run.split}",
                "run.epochs=200",
                "run.checkpoint_every=-1",
                "run.console_every_s=30",
                *own,
                *self.changes,
                *run.changes,
            ],
        )
