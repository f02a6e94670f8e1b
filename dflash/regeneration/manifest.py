"""The manifest beside a file of answers: what they follow from, who wrote them, what became of every row.

By it a session knows whether it goes on with the same answers or would mix two kinds. Knows nothing of how
answers are had.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Final

from dflash.contract.config import TrainConfig
from dflash.contract.errors import RunError
from dflash.contract.regeneration import RegenerationChoice
from dflash.data.sources import source_files
from dflash.regeneration.output import AnswerFile

embedded_name: Final = "embedded text"


def check_apart(data: str, to: Path) -> None:
    """Raise RunError where the answers would be written over their prompts, or would be read as some."""
    if not data:
        return
    if to.resolve() in [file.resolve() for file in source_files(Path(data))]:
        raise RunError("the answers would replace their own prompts", where="--to", found=str(to))
    if to.resolve().parent == Path(data).resolve():
        raise RunError(
            "the answers would become prompts themselves",
            where="--to",
            found=f"{to}, in the directory of the prompts",
            expected="a place outside of it, so that the same command can go on",
        )


def finished_before(
    config: TrainConfig, choice: RegenerationChoice, path: Path, manifest_path: Path
) -> dict[str, Any] | None:
    """The document of a file that is finished and was asked for in the same way. Raises RunError."""
    if not path.exists() or path.with_name(path.name + ".part").exists():
        return None
    try:
        manifest = json.loads(manifest_path.read_text(encoding="utf-8"))
        known, books = manifest["identity"], dict(manifest["books"])
    except (OSError, ValueError, LookupError, TypeError):
        known, books = {}, {}
    asked = asked_for(config, choice)
    differing = [key for key, value in asked.items() if known.get(key) != value]
    if differing or manifest["state"] != "finished":
        raise RunError(
            "there is a file already, with answers to something else" if known else "there is a file already",
            where=str(path),
            found=f"other {', '.join(differing)}" if known else "no manifest of ours beside it",
            remedy="name another file with --to, or remove this one",
        )
    return {**books, "to": str(path), "manifest": str(manifest_path), "state": "finished", "error_rows": []}


def asked_for(config: TrainConfig, choice: RegenerationChoice) -> dict[str, Any]:
    """What answers follow from, as far as it is known before an engine is open."""
    data = config.data.path
    digests = {file.name: _sha256(file) for file in source_files(Path(data))} if data else embedded_name
    target = {"seed": config.target.seed, "dtype": config.target.dtype}
    own = {} if choice.engine == "openai" else {"model": config.target.model, **target}
    return {"data": digests, "thinking": config.data.thinking, "config": own, **choice.identity()}


def go_on(file: AnswerFile, manifest_path: Path, identity: dict[str, Any]) -> dict[str, Any]:
    """The manifest so far, or a new one. Raises RunError when the part answers something else."""
    manifest: dict[str, Any] = {"schema": 1, "state": "running", "identity": identity, "sessions": []}
    if not len(file):
        return manifest
    try:
        before = json.loads(manifest_path.read_text(encoding="utf-8"))
        known, sessions = before["identity"], list(before["sessions"])
    except (OSError, ValueError, LookupError, TypeError):
        raise RunError(
            "rows are there and nothing says how they were answered",
            where=str(file.part),
            expected=f"{manifest_path.name} beside it",
            remedy="remove the file, or bring the manifest back",
        ) from None
    if known != identity:
        differing = sorted(key for key in identity if known.get(key) != identity[key])
        raise RunError(
            "these rows were answered otherwise",
            where=str(file.part),
            found=f"other {', '.join(differing)}",
            remedy="give the same options and data, name another file with --to, or remove this one",
        )
    return {**manifest, "sessions": sessions}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
