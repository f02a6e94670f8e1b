"""Checkpoints: a directory that appears whole or not at all, and what it takes to go on from one.

step-N/
  model.safetensors, config.json    the drafter in the form that inference engines load
  optimizer.safetensors             float32 masters and moments
  state.json                        step, identity of the model, data position, checksums

Nothing pickled. A directory is written under a temporary name, synced and renamed; leftovers of a killed
writer are recognisable (`.step-…`) and removed by the next one. Knows nothing of threads.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from dflash.contract.config import TrainConfig
from dflash.contract.errors import CheckpointError, DFlashError, RunError
from dflash.contract.model_shapes import random_prefix
from dflash.contract.rundir import write_json
from dflash.data.documents import Documents
from dflash.drafter import DrafterSpec
from dflash.drafter_files import read_drafter, write_drafter
from dflash.replicas import ReplicaGroup

state_version = 2


def identity(config: TrainConfig, spec: DrafterSpec, documents: Documents) -> dict[str, dict[str, Any]]:
    """What must be equal to go on from a checkpoint: the model, and the data with its order and cutting.

    Data is known by its tokens, so that a file may move, and another tokenizer or template is found.
    """
    seeded = config.target.model.startswith(random_prefix)
    model = {
        "target": config.target.model,
        "target.seed": config.target.seed if seeded else None,
        "hidden": spec.hidden,
        "layers": spec.layers,
        "taps": list(spec.taps),
        "block_size": spec.block_size,
        "mask_token_id": spec.mask_token_id,
        "vocab": spec.vocab,
    }
    data = {
        "data.seed": config.data.seed,
        "window.tokens": config.window.tokens,
        "documents": documents.identity,
    }
    return {"model": model, "data": data}


def save_checkpoint(
    directory: Path, group: ReplicaGroup, identity: Mapping[str, Any], *, steps_done: int, keep: int
) -> Path:
    """Write `directory`/step-N of a run of that `identity`, remove leftovers, keep the newest `keep`.

    Raises DFlashError when it cannot be written, say on a full disk; older checkpoints are then untouched.
    """
    final = directory / f"step-{steps_done}"
    temporary = directory / f".step-{steps_done}.{os.getpid()}"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for leftover in directory.glob(".step-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        temporary.mkdir()
        write_drafter(temporary, group.leader.drafter)
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in group.state().items()}
        save_file(tensors, str(temporary / "optimizer.safetensors"))
        files = sorted(path.name for path in temporary.iterdir())
        state = {
            "version": state_version,
            "steps_done": steps_done,
            "identity": identity,
            "sha256": {name: _digest(temporary / name) for name in files},
        }
        write_json(temporary / "state.json", state)
        _sync(temporary)
        if final.exists():
            shutil.rmtree(final)
        temporary.rename(final)
        _sync_directory(directory)
        for old in _complete(directory)[:-keep]:
            shutil.rmtree(old)
    except (OSError, SafetensorError, RunError) as error:
        reason = error.what if isinstance(error, RunError) else error
        raise DFlashError(
            f"the checkpoint cannot be written: {reason}",
            where=str(final),
            remedy="make room or mend the disk, then go on from the newest checkpoint with run.resume",
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)  # there only after a failure, when its room is needed
    return final


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint read and verified."""

    path: Path
    steps_done: int
    weights: dict[str, Tensor]
    optimizer: dict[str, Tensor]


def find_checkpoint(text: str) -> Path:
    """The checkpoint meant by a step directory, a checkpoints directory or a run directory."""
    path = Path(text)
    if (path / "state.json").is_file():
        return path
    for directory in (path / "checkpoints", path):
        if complete := _complete(directory):
            return complete[-1]
    raise CheckpointError(
        "no checkpoint to resume from",
        where=text,
        found="no such path" if not path.exists() else "no complete step-N directory",
        expected="a step-N directory, or a run directory that holds checkpoints/step-N",
    )


def load_checkpoint(path: Path, identity: Mapping[str, Any], spec: DrafterSpec) -> Checkpoint:
    """Read, verify checksums and that it belongs to a run of that `identity`. Raises CheckpointError."""
    try:
        state = json.loads((path / "state.json").read_text(encoding="utf-8"))
        version, steps_done = state["version"], state["steps_done"]
        saved, digests = state["identity"], state["sha256"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"state.json cannot be read: {type(error).__name__}: {error}", where=str(path)
        ) from None
    if version != state_version:
        raise CheckpointError(
            "the checkpoint has the format of another version",
            where=str(path),
            found=version,
            expected=state_version,
            remedy="go on with the version of dflash-tune that wrote it",
        )
    for name, digest in digests.items():
        _verify(path / name, digest)
    _check_identity(saved, identity, path)
    try:
        tensors = load_file(str(path / "optimizer.safetensors"))
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"the optimizer state cannot be read: {error}", where=str(path)) from None
    return Checkpoint(path, steps_done, read_drafter(path, spec), tensors)


def _verify(path: Path, digest: str) -> None:
    if not path.is_file():
        found = "missing"
    elif path.stat().st_size == 0:
        found = "an empty file"
    elif (actual := _digest(path)) != digest:
        found = f"sha256 {actual[:12]}…, {path.stat().st_size} bytes"
    else:
        return
    raise CheckpointError(
        "the checkpoint is damaged",
        where=str(path),
        found=found,
        expected=f"sha256 {digest[:12]}…",
        remedy="resume from an older step-N directory of the same run",
    )


def _check_identity(saved: Mapping[str, Any], now: Mapping[str, Any], path: Path) -> None:
    for group, what in (("model", "another model"), ("data", "other data")):
        for key, value in now[group].items():
            found = saved.get(group, {}).get(key)
            if found != value:
                raise CheckpointError(
                    f"the checkpoint belongs to {what}",
                    where=f"{path}: {key}",
                    found=found,
                    expected=value,
                    remedy="resume with the configuration that wrote it, or start a new run",
                )


def _complete(directory: Path) -> list[Path]:
    """Complete checkpoints, oldest first."""
    found = [p for p in directory.glob("step-*") if p.name[5:].isdecimal() and (p / "state.json").is_file()]
    return sorted(found, key=lambda p: int(p.name[5:]))


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(directory: Path) -> None:
    for path in directory.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
    _sync_directory(directory)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
