"""What must be equal for the trials of a study to be comparable, kept in STUDY_DIR/study.json.

A search that is started on an existing study must match it: same machine, same model and data, same
configuration, same trial length, same version. Otherwise results of different things would be mixed. The
space may change: which trials still apply is told by their values (applying.py). Knows nothing of trials.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autotune.arithmetic import Limits
from autotune.default_space import is_emulated
from autotune.machine import Machine
from autotune.space import Dimension, SearchSpace
from dflash.contract.config import TrainConfig, from_values
from dflash.contract.errors import RunError, UsageError
from dflash.contract.knobs import flatten
from dflash.contract.rundir import utc_now, write_json
from dflash.contract.versions import own_version

schema_version = 1
conditions_name = "conditions.json"  # a copy of study.json in every trial's directory
sample_bytes = 1 << 20  # hashed at each end of a data file


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """A study's fixed side. Two are equal when trials of one may be compared with trials of the other."""

    version: str | None  # of this product; None: not installed, so not known
    machine: Mapping[str, Any]
    emulated: bool  # trials run on logical devices, so speeds say nothing of GPUs
    config: Mapping[str, Any]  # {dotted path: value} of the starting configuration
    space: Mapping[str, Any]  # {dotted path: choices}
    devices: int
    seconds: float  # training time of a trial
    inputs: Mapping[str, Any]  # fingerprints of model and data
    created_utc: str = field(compare=False)
    limits: Mapping[str, Any] = field(default_factory=dict, compare=False)  # of memory, for arithmetic

    def to_json(self) -> dict[str, Any]:
        return {"schema": schema_version, **dataclasses.asdict(self)}

    def search_space(self) -> SearchSpace:
        """The space as it was described. Raises UsageError where this version no longer knows its knobs."""
        # What was accepted once is not asked again: knobs that change what is trained are taken as they are.
        dimensions = tuple(
            Dimension(path, choices, changes_training=True) for path, choices in self.space.items()
        )
        return SearchSpace(dimensions, self.base(), self.devices, Limits(**self.limits))

    def base(self) -> TrainConfig:
        return from_values(self.config)

    def differences(self, other: Identity) -> list[str]:
        """What differs in `other` and must not, one line each."""
        ours, theirs = flatten(self._binding()), flatten(other._binding())
        return _differences(ours, theirs)

    def _binding(self) -> dict[str, Any]:
        free = ("created_utc", "space", "limits")
        return {name: value for name, value in self.to_json().items() if name not in free}


def identify(space: SearchSpace, machine: Machine, seconds: float) -> Identity:
    """The identity of a search over `space` on `machine`."""
    described = Identity(
        version=own_version(),
        machine=machine.describe(),
        emulated=is_emulated(space.base, machine),
        config=space.base.values(),
        space=space.describe(),
        devices=space.devices,
        seconds=seconds,
        inputs={
            "data": fingerprint(space.base.data.path),
            "model": fingerprint(space.base.target.model),
            "tokenizer": fingerprint(space.base.target.tokenizer),
        },
        created_utc=utc_now(),
        limits=dataclasses.asdict(space.limits),
    )
    # Through JSON once, so that it equals what a later search reads back (tuples become lists).
    return _from_json(json.loads(json.dumps(described.to_json())))


def settle_identity(study_dir: Path, identity: Identity) -> Identity:
    """The study's identity: `identity` for a new study, else the stored one if it matches.

    A changed space is written down; what else differs is named in a UsageError.
    """
    path = study_dir / "study.json"
    if _find_description(study_dir) is None:
        write_json(path, identity.to_json())
        return identity
    stored = read_identity(study_dir)
    differences = stored.differences(identity)
    if differences:
        raise UsageError(
            "the study was made under other conditions, and results must not be mixed",
            where=str(study_dir),
            found="\n    ".join(["", *differences]),
            remedy="use another --study-dir for a new study",
        )
    if stored.space == identity.space and path.exists():
        return stored
    settled = dataclasses.replace(stored, space=identity.space)
    write_json(path, settled.to_json())
    return settled


def read_identity(study_dir: Path) -> Identity:
    """The identity of the study in `study_dir`, of its newest trial where study.json is lost.

    Raises RunError when there is none.
    """
    path = _find_description(study_dir)
    if path is None:
        raise RunError(
            "not a study directory: it holds no study.json",
            where=str(study_dir),
            remedy="`dflash-tune search` makes one",
        )
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"{path.name} cannot be read: {error}", where=str(path)) from None
    try:
        if data["schema"] > schema_version:
            raise RunError(
                "the study was written by a newer version",
                where=str(path),
                found=f"schema {data['schema']}",
                expected=f"schema {schema_version} or older",
                remedy="update dflash-tune",
            )
        return _from_json(data)
    except (KeyError, TypeError) as error:
        raise RunError(f"{path.name} is not a study's description: {error!r}", where=str(path)) from None


def _find_description(study_dir: Path) -> Path | None:
    path = study_dir / "study.json"
    if path.exists():
        return path
    copies = (study_dir / "trials").glob(f"[0-9]*/{conditions_name}")
    return max(copies, key=lambda copy: int(copy.parent.name), default=None)


def fingerprint(source: str) -> str:
    """What a data file or model is, beyond its name: sizes and a hash of parts, for local ones."""
    path = Path(source)
    if not source or not path.exists():
        return source  # embedded text, a random model or a hub name: the name says it all
    files = [path] if path.is_file() else sorted(p for p in path.iterdir() if p.is_file())
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.name} {file.stat().st_size}\n".encode())
        digest.update(_sample(file))
    return f"sha256 {digest.hexdigest()[:16]}"


def _sample(path: Path) -> bytes:
    """The first and the last MiB: enough to tell files apart without reading a whole corpus."""
    with path.open("rb") as file:
        head = file.read(sample_bytes)
        file.seek(max(0, path.stat().st_size - sample_bytes))
        return head + file.read(sample_bytes)


def _from_json(data: Mapping[str, Any]) -> Identity:
    names = {f.name for f in dataclasses.fields(Identity)}
    return Identity(**{name: data[name] for name in names if name != "limits" or name in data})


def _differences(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    return [
        f"{name}: {_text(ours.get(name))}, now {_text(theirs.get(name))}"
        for name in sorted({*ours, *theirs})
        if ours.get(name) != theirs.get(name)
    ]


def _text(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
