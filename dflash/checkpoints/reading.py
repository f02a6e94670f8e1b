"""Finds a checkpoint that is whole, and reads it.

What a person names is a step-N directory, which is then meant and no other, or a run or its directory of
checkpoints, of which the newest is meant; with `older`, the newest that is whole. Knows nothing of what a run
does with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from dflash.checkpoints.files import optimizer_name, state_name, step_directories, step_of, verify_files
from dflash.checkpoints.manifest import Manifest, read_manifest
from dflash.contract.errors import CheckpointError, ConfigError, DamagedError
from dflash.contract.rundir import RunDir


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundCheckpoint:
    """A checkpoint whose files are as they were written."""

    path: Path
    manifest: Manifest
    damaged: tuple[DamagedError, ...] = ()  # of newer ones, newest first
    steps_lost: int = 0  # to the newest of those

    def read_optimizer(self) -> dict[str, Tensor]:
        """Masters and moments by name. Raises CheckpointError."""
        try:
            return load_file(str(self.path / optimizer_name))
        except (OSError, SafetensorError) as error:
            raise CheckpointError(
                f"the optimizer state cannot be read: {error}", where=str(self.path / optimizer_name)
            ) from None


def find_checkpoint(text: str, *, older: bool = True, purpose: str = "resume from") -> FoundCheckpoint:
    """The checkpoint meant by `text`, verified. Raises CheckpointError, DamagedError for a damaged one.

    `older`: of a run whose newest are damaged, the newest that is whole. `purpose`: what to say it is for.
    """
    named = Path(text)
    candidates = [named] if _is_one(named) else _checkpoints_in(named)[::-1]
    if not candidates:
        raise _nothing_there(named, purpose)
    damaged: list[DamagedError] = []
    for path in candidates:
        try:
            manifest = read_manifest(path)
            verify_files(path, manifest.files)
        except DamagedError as error:
            if not older or path == named:
                raise
            damaged.append(error)
            continue
        lost = step_of(candidates[0]) - manifest.position.step if damaged else 0
        return FoundCheckpoint(path=path, manifest=manifest, damaged=tuple(damaged), steps_lost=lost)
    raise CheckpointError(
        "no checkpoint is whole",
        where=text,
        found="; ".join(f"{error.where}: {error.found}" for error in damaged),
        remedy="resume from another copy, or start a new run",
    )


def _is_one(path: Path) -> bool:
    """Whether a checkpoint itself is named, and not what holds some."""
    return (path / state_name).is_file() or (path.name.startswith("step-") and path.is_dir())


def _checkpoints_in(path: Path) -> list[Path]:
    """Of a run directory or a directory of checkpoints, oldest first."""
    return step_directories(RunDir(path).checkpoints) or step_directories(path)


def _nothing_there(path: Path, purpose: str) -> CheckpointError:
    if not path.exists():
        found, remedy = "no such path", None
    elif not path.is_dir():
        size = path.stat().st_size
        found = f"a file of {size} bytes" if size else "an empty file"
        remedy = "name the directory; single files of other trainers cannot be resumed from"
    else:
        found, remedy = "a directory without one", _where_it_came_from(path)
    return CheckpointError(
        f"no checkpoint to {purpose}",
        where=str(path),
        found=found,
        expected="a step-N directory, or a run directory that holds checkpoints/step-N",
        remedy=remedy,
    )


def _where_it_came_from(path: Path) -> str | None:
    """What a run that saved nothing was itself resumed from."""
    from dflash.contract.config import load_config

    try:
        source = load_config(RunDir(path).config_path).run.resume
    except ConfigError:
        return None
    return f"this run saved nothing yet; it was resumed from {source}" if source else None
