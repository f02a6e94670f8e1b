"""Going on from a checkpoint: what must be equal, what may change and is told, and where in the data one is.

Equal: the model. Equal, or given up on purpose (`run.resume_data=other`): the data, which then begin anew.
All other settings may change.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dflash.checkpoints.files import remove_leftovers, set_aside, step_directories, step_of
from dflash.checkpoints.identity import Identity
from dflash.checkpoints.manifest import Position
from dflash.checkpoints.reading import FoundCheckpoint, find_checkpoint
from dflash.contract.config import TrainConfig
from dflash.contract.errors import CheckpointError, ConfigError
from dflash.contract.held_knobs import name_changes
from dflash.drafter_files import read_drafter
from dflash.replicas import ReplicaGroup
from dflash.window import Course

# They say how one goes on, or only what is shown.
_no_changes = ("run.resume", "run.resume_data", "run.resume_damaged", "run.console_every_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumption:
    """A checkpoint that this run goes on from."""

    found: FoundCheckpoint
    position: Position  # in the data of this run
    changes: tuple[str, ...]  # what is not as it was, in words
    warnings: tuple[str, ...]

    @property
    def step(self) -> int:
        return self.position.step

    def restore(self, group: ReplicaGroup, course: Course) -> None:
        """Weights and optimizer of the checkpoint into all replicas. Raises CheckpointError, ConfigError."""
        self._check_place(course)
        read_drafter(self.found.path, group.leader.drafter.spec)  # its shape is what the identity says
        tensors = self.found.read_optimizer()
        group.restore(tensors, self.step, updates=self.found.manifest.optimizer_updates)

    def _check_place(self, course: Course) -> None:
        """Something is left to train, and the step is where the checkpoint says it is."""
        if self.step >= course.total_steps:
            raise ConfigError(
                "nothing is left to train",
                where=str(self.found.path),
                found=f"{self.step} steps done",
                expected=f"fewer than the {course.total_steps} steps of this configuration",
                remedy="raise run.epochs or run.max_steps",
            )
        place = (self.position.epoch, self.position.window)
        if course.place(self.step) != place:
            raise CheckpointError(
                "the checkpoint stands elsewhere in the data than its step says",
                where=str(self.found.path),
                found="epoch {}, window {}".format(*place),
                expected="epoch {}, window {}".format(*course.place(self.step)),
                remedy="go on with the version of dflash-tune that wrote it",
            )

    def clear_way(self, directory: Path) -> None:
        """Make room for the checkpoints of this run in `directory`, when it is where this one lies.

        Damaged newer ones are set aside. Raises CheckpointError where newer ones are whole.
        """
        if not directory.is_dir():
            return
        damaged = {Path(str(error.where)).parent.resolve() for error in self.found.damaged}
        for path in step_directories(directory):
            if step_of(path) <= self.step:
                continue
            if path.resolve() not in damaged:
                raise CheckpointError(
                    "the run directory holds later checkpoints than the one to go on from",
                    where=str(path),
                    expected=f"none after step-{self.step}",
                    remedy="train into a new run directory",
                )
            set_aside(path)

    def lines(self) -> list[str]:
        """What it comes to, for people; warnings not included."""
        place = f"epoch {self.position.epoch}, window {self.position.window}"
        said = [f"resuming at step {self.step} ({place}) from {self.found.path}"]
        if self.changes:
            said.append(f"changed since: {', '.join(self.changes)}")
        return said

    def to_json(self) -> dict[str, Any]:
        """For run.json."""
        return {
            "from": str(self.found.path),
            **asdict(self.position),
            "steps_lost": self.found.steps_lost,
            "changes": list(self.changes),
            "warnings": list(self.warnings),
        }


def find_named(config: TrainConfig) -> FoundCheckpoint | None:
    """What `run.resume` names, verified; None when it is empty. Removes what a killed writer left beside it.

    Raises CheckpointError.
    """
    if not config.run.resume:
        return None
    found = find_checkpoint(config.run.resume, older=config.run.resume_damaged == "older")
    remove_leftovers(found.path.parent)
    return found


def resume(found: FoundCheckpoint, identity: Identity, config: TrainConfig, devices: list[str]) -> Resumption:
    """How a run of that identity goes on from `found`. Raises CheckpointError, naming what differs."""
    manifest, where = found.manifest, str(found.path)
    identity.check_model(manifest.model, where)
    position, warnings = manifest.position, [*_told_of_damage(found), *_told_of_updates(found)]
    if not identity.has_data(manifest.data):
        if config.run.resume_data == "same":
            raise identity.other_data(manifest.data, where)
        position = Position(step=position.step, data_begins_at=position.step, epoch=0, window=0)
        warnings.append(
            f"other data than the checkpoint's ({identity.name_data_changes(manifest.data)}): "
            f"they are trained from their beginning, as step {position.step} and on"
        )
    return Resumption(
        found=found,
        position=position,
        changes=tuple(_changes(found, config, devices)),
        warnings=tuple(warnings),
    )


def _told_of_damage(found: FoundCheckpoint) -> Iterator[str]:
    for error in found.damaged:
        yield f"a checkpoint is damaged: {error.where}: {error.found}, expected {error.expected}"
    if found.damaged:
        yield f"going on from {found.path.name}: {_count(found.steps_lost)} lost, to be trained again"


def _told_of_updates(found: FoundCheckpoint) -> Iterator[str]:
    steps, updates = found.manifest.position.step, found.manifest.optimizer_updates
    if updates < steps:
        yield (
            f"{found.path} is of step {steps}, but its optimizer made {updates} updates: "
            f"{_count(steps - updates)} taught nothing"
        )
    elif updates > steps:
        yield f"{found.path} is of step {steps}, but its optimizer made {updates} updates: more than steps"


def _count(steps: int) -> str:
    return "1 step" if steps == 1 else f"{steps} steps"


def _changes(found: FoundCheckpoint, config: TrainConfig, devices: list[str]) -> Iterator[str]:
    before = {k: v for k, v in found.manifest.settings.items() if k not in _no_changes}
    # As JSON has them: lists where there are tuples.
    now = {k: list(v) if isinstance(v, tuple) else v for k, v in config.values().items() if k in before}
    if changed := name_changes({k: v for k, v in before.items() if k in now}, now):
        yield changed
    if found.manifest.devices != devices:
        yield f"devices {', '.join(found.manifest.devices)} → {', '.join(devices)}"
