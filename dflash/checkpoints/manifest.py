"""state.json of a checkpoint: where in data and schedule it stands, whose it is, and what its files must be.

The document carries a checksum of itself, so that a flipped digit is damage and not another step. Knows
nothing of tensors.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from dflash.checkpoints.files import damage, state_name
from dflash.contract.errors import CheckpointError
from dflash.contract.rundir import utc_now, write_json
from dflash.contract.versions import own_name

state_version: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """The window that is trained next."""

    step: int  # optimizer steps behind it in all
    data_begins_at: int  # the step at which the present data began; 0 unless other data were taken up
    epoch: int
    window: int  # of the epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What state.json holds."""

    position: Position
    optimizer_updates: int  # steps that changed the weights, by the optimizer's own count
    schedule: Mapping[str, Any]  # total_steps, and the rate of the next step
    random: Mapping[str, Any]  # keys of the counter-based generator; it has no state beside them
    model: Mapping[str, Any]  # see Identity
    data: Mapping[str, Any]
    settings: Mapping[str, Any]  # every knob of the run that wrote it
    devices: list[str]
    files: Mapping[str, Mapping[str, Any]]  # {name: bytes, sha256}


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """state.json into the directory of a checkpoint. Raises RunError."""
    body = {
        "version": state_version,
        "written_utc": utc_now(),
        "written_by": own_name(),
        **asdict(manifest),
    }
    write_json(directory / state_name, {**body, "sha256": _checksum(body)})


def read_manifest(directory: Path) -> Manifest:
    """state.json of a checkpoint. Raises DamagedError, or CheckpointError for another version."""
    path = directory / state_name
    try:
        text = path.read_text(encoding="utf-8", errors="surrogateescape")
    except FileNotFoundError:
        raise damage(path, "missing", "the file that makes a checkpoint complete") from None
    except (OSError, ValueError) as error:
        raise damage(path, f"unreadable: {error}", "a JSON document") from None
    try:
        body = json.loads(text)
        version, checksum = body.pop("version"), body.pop("sha256")
        if isinstance(checksum, str) and checksum != _checksum({"version": version, **body}):
            raise damage(path, "contents that are not those of its checksum", f"sha256 {checksum[:12]}…")
        if version == state_version:
            fields = {name: body[name] for name in Manifest.__dataclass_fields__}
            return Manifest(**{**fields, "position": Position(**fields["position"])})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        found = f"{path.stat().st_size} bytes; {type(error).__name__}: {error}" if text else "an empty file"
        raise damage(path, found, "a JSON document") from None
    raise CheckpointError(
        "the checkpoint has the format of another version",
        where=str(directory),
        found=version,
        expected=state_version,
        remedy="go on with the version of dflash-tune that wrote it",
    )


def _checksum(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
