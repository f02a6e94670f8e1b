"""Writes the checkpoints of one run into one directory, at window ends, and keeps the newest.

A save that fails, say on a full disk, leaves the older checkpoints as they are and does not end the run: it
is warned about and tried again at the next turn. The run ends when that fails too, or when it was the last.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file

from dflash.checkpoints.files import (
    facts_of_files,
    optimizer_name,
    remove_leftovers,
    remove_older,
    write_whole,
)
from dflash.checkpoints.identity import Identity
from dflash.checkpoints.manifest import Manifest, Position, write_manifest
from dflash.contract.config import TrainConfig
from dflash.contract.errors import DFlashError, RunError
from dflash.devices import DeviceSet
from dflash.drafter_files import write_drafter
from dflash.optimizer import learning_rate
from dflash.replicas import ReplicaGroup
from dflash.window import Course


@dataclass(kw_only=True)
class CheckpointWriter:
    """Called by one thread at a time, when the steps that it is to keep have been made."""

    directory: Path
    config: TrainConfig
    identity: Identity
    course: Course
    devices: list[str]
    saved_step: int  # nothing is behind it that is not saved
    warn: Callable[[str], None] = lambda text: None
    newest: Path | None = None  # written by this run
    _failed: DFlashError | None = field(default=None, init=False)

    def clean(self) -> None:
        """Remove what a killed run left in the directory."""
        remove_leftovers(self.directory)

    def save(self, group: ReplicaGroup, *, last: bool) -> None:
        """Keep the steps so far, unless that was done. Raises DFlashError: see above."""
        if group.optimizer.steps_done <= self.saved_step:
            return
        try:
            self.newest = save_checkpoint(self.directory, group, self._describe(group))
        except DFlashError as error:
            if last or self._failed is not None:
                raise
            self._failed = error
            self.warn(
                f"{error.what} ({error.where}); training goes on, the checkpoints before it are whole. "
                "It ends if the next one cannot be written either"
            )
            return
        self.saved_step, self._failed = group.optimizer.steps_done, None
        remove_older(self.directory, self.config.run.keep_checkpoints)

    def _describe(self, group: ReplicaGroup) -> Manifest:
        """The manifest of what `group` holds now, but for the files."""
        step = group.optimizer.steps_done
        epoch, window = self.course.place(step)
        total = self.course.total_steps
        return Manifest(
            position=Position(step=step, data_begins_at=self.course.begins_at, epoch=epoch, window=window),
            optimizer_updates=group.optimizer.updates_made(),
            schedule={
                "total_steps": total,
                "next_lr": learning_rate(self.config.optimizer, step, total),
            },
            random={"generator": "Philox 4x64", "data.seed": self.config.data.seed, "epoch": epoch},
            model=self.identity.model,
            data=self.identity.data,
            settings=self.config.values(),
            devices=self.devices,
            files={},
        )


def name_devices(devices: DeviceSet) -> list[str]:
    """The kinds of device that a run is on."""
    return sorted({device.facts()["model"] or "logical device" for device in devices.all})


def save_checkpoint(directory: Path, group: ReplicaGroup, manifest: Manifest) -> Path:
    """Write `directory`/step-N. Raises DFlashError when it cannot be written; others are then untouched."""

    def fill(into: Path) -> None:
        write_drafter(into, group.leader.drafter)
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in group.state().items()}
        save_file(tensors, str(into / optimizer_name))
        write_manifest(into, replace(manifest, files=facts_of_files(into)))

    step = manifest.position.step
    try:
        return write_whole(directory, step, fill)
    except (OSError, SafetensorError, RunError) as error:
        reason = error.what if isinstance(error, RunError) else error
        raise DFlashError(
            f"the checkpoint cannot be written: {reason}",
            where=str(directory / f"step-{step}"),
            remedy="make room or mend the disk, then go on from the newest checkpoint with --resume",
        ) from error
