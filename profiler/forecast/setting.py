"""The pipeline that a forecast is about: how many stages on which devices, with which queues between.

Taken from a configuration, or read off the run where a stranger's trainer has none. Knows nothing of times.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dflash.contract.config import TrainConfig
from profiler.timeline import Timeline
from profiler.waits import family_of

Path = Literal["pageable", "pinned", "peer"]
unknown_depth = 2  # of a queue whose capacity a run does not tell


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What the stages are joined by. Places are numbers of devices; roles on one number share it."""

    target_places: tuple[int, ...]
    drafter_places: tuple[int, ...]
    shared_queue: bool = False
    path: str = "peer"  # pageable, pinned, peer, or auto: the faster of the last two
    dispatch: str = "least_depth"  # round_robin, least_depth, local
    depth: int = 2  # of each queue to the drafters
    prefetch_depth: int = 8
    lockstep: bool = False
    token_budget: int | None = None  # None: batches are as they were
    window_tokens: int | None = None  # None: windows are as they were

    @classmethod
    def of(cls, config: TrainConfig) -> Setting:
        """The pipeline of a configuration."""
        (targets, drafters), choice = config.role_places, config.transport_choice
        return cls(
            target_places=targets,
            drafter_places=drafters,
            shared_queue=choice.queue == "shared",
            path=choice.path,
            dispatch=choice.dispatch,
            depth=choice.depth,
            prefetch_depth=config.pipeline.prefetch_depth,
            lockstep=config.pipeline.schedule == "lockstep",
            token_budget=config.pipeline.token_budget,
            window_tokens=config.window.tokens,
        )

    @property
    def targets(self) -> int:
        return len(self.target_places)

    @property
    def drafters(self) -> int:
        return len(self.drafter_places)

    @property
    def queues(self) -> int:
        return 1 if self.shared_queue else self.drafters

    @property
    def shares_devices(self) -> bool:
        """Whether any two roles have one device."""
        return len({*self.target_places, *self.drafter_places}) < self.targets + self.drafters

    def within(self, target: int, drafter: int) -> bool:
        """Whether nothing needs to be copied between the two."""
        return self.path != "pinned" and self.target_places[target] == self.drafter_places[drafter]


def observed_setting(timeline: Timeline) -> Setting | None:
    """The pipeline that left this timeline; None when it holds no targets or no drafters."""
    if timeline.config is not None:
        return Setting.of(timeline.config)
    frame = timeline.threads[["stage", "index", "device"]].drop_duplicates()
    named = {stage: list(frame.loc[frame["stage"] == stage, "device"]) for stage in ("target", "drafter")}
    if not named["target"] or not named["drafter"]:
        return None
    # The CPU is no device that roles take turns on; a name for each role keeps them apart.
    names = [
        [f"{stage} {i}" if device == "cpu" else str(device) for i, device in enumerate(devices)]
        for stage, devices in named.items()
    ]
    places = {name: number for number, name in enumerate(dict.fromkeys([*names[0], *names[1]]))}
    targets, drafters = ([places[name] for name in role] for role in names)
    queues = [name for name in timeline.depths["channel"] if family_of(name) == "q_hs"]
    return Setting(
        target_places=tuple(targets),
        drafter_places=tuple(drafters),
        shared_queue=len(queues) < len(drafters),
        path=_observed_path(timeline),
        dispatch="round_robin" if len(queues) < len(drafters) else "least_depth",
        depth=_capacity(timeline, "q_hs"),
        prefetch_depth=_capacity(timeline, "q_pre"),
    )


def _observed_path(timeline: Timeline) -> Path:
    """Pageable where stages copied through the host on their own threads."""
    own = timeline.copies[timeline.copies["stage"].isin(["target", "drafter"])]
    return "pageable" if bool(own["path"].isin(["pageable", "pinned", "host"]).any()) else "peer"


def _capacity(timeline: Timeline, family: str) -> int:
    mine = timeline.depths.loc[[family_of(name) == family for name in timeline.depths["channel"]]]
    known = mine["capacity"].dropna()
    return max(int(known.max()), 1) if len(known) else unknown_depth
