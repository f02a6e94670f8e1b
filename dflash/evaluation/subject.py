"""What is evaluated: a drafter from a run, a checkpoint or an export, with its configuration.

The configuration is that of the run that made it; of a published drafter only what the user names is known.
Knows nothing of texts.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash.checkpoints.files import state_name
from dflash.contract.config import TrainConfig, all_knobs, from_values
from dflash.contract.errors import CheckpointError, UsageError
from dflash.contract.knobs import parse_assignments
from dflash.data.tokenizer import ChatTokenizer
from dflash.drafter import Drafter, DrafterSpec
from dflash.drafter_config import config_name
from dflash.drafter_files import open_drafter
from dflash.export import check_finite, export_name, find_whole, tokenizer_facts
from dflash.target_shapes import TargetSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A drafter on the CPU, as stored, and what is known of how it was trained."""

    drafter: Drafter
    config: TrainConfig
    path: Path
    step: int | None  # None: unknown
    tokenizer: dict[str, Any]  # checksums of the one it was trained with; empty: unknown
    trained_on: str | None  # identity of the documents; None: unknown

    def doubt_tokenizer(self, opened: ChatTokenizer) -> list[str]:
        """In words, whether texts are made otherwise than in training."""
        now = {"tokenizer": opened.content_sha256, "chat_template": opened.template_sha256}
        return [
            f"the {name.replace('_', ' ')} is not the one that the drafter was trained with"
            for name, value in now.items()
            if self.tokenizer.get(name) not in (None, value)
        ]


def open_subject(source: str, assignments: Sequence[str]) -> Subject:
    """The newest checkpoint of a run, a step-N directory, or an export; `assignments`: knob=value.

    Raises CheckpointError, ConfigError, and UsageError where nobody says which target it is of.
    """
    chosen = parse_assignments(assignments, all_knobs)
    path = Path(source)
    if (path / config_name).is_file() and not (path / state_name).is_file():
        return _open_export(path, chosen)
    found = find_whole(source, "evaluate")
    settings = {name: tuple(v) if isinstance(v, list) else v for name, v in found.manifest.settings.items()}
    drafter = open_drafter(found.path)
    check_finite(drafter, found.path)
    return Subject(
        drafter=drafter,
        config=from_values({**settings, **chosen}),
        path=found.path,
        step=found.manifest.position.step,
        tokenizer=tokenizer_facts(found.manifest.model),
        trained_on=found.manifest.data.get("documents"),
    )


def _open_export(path: Path, chosen: dict[str, Any]) -> Subject:
    origin = _read_origin(path / export_name)
    target = {f"target.{key}": value for key, value in origin.get("target", {}).items() if value is not None}
    values = {**origin.get("settings", {}), **target, **chosen}
    if "target.model" not in values:
        raise UsageError(
            "nothing says which target this drafter is of",
            where=str(path),
            found=f"no {export_name}, which `dflash-train export` writes",
            remedy="name it: --set target.model=NAME",
        )
    drafter = open_drafter(path)
    check_finite(drafter, path)
    return Subject(
        drafter=drafter,
        config=from_values(values),
        path=path,
        step=origin.get("source", {}).get("step"),
        tokenizer=tokenizer_facts(origin),
        trained_on=origin.get("documents"),
    )


_tables = ("source", "target", "settings")


def _read_origin(path: Path) -> dict[str, Any]:
    try:
        origin = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{export_name} cannot be read: {error}", where=str(path)) from None
    if not isinstance(origin, dict) or not all(isinstance(origin.get(key, {}), dict) for key in _tables):
        raise CheckpointError(
            f"{export_name} is not what an export writes",
            where=str(path),
            expected=f"a JSON object with {', '.join(_tables)}",
            remedy="export again, or remove it and name the target with --set target.model=NAME",
        )
    return origin


def check_fits(drafter: DrafterSpec, target: TargetSpec) -> None:
    """Raises CheckpointError for a drafter of another target, or with layers or rows that it has not."""
    pairs = {
        "hidden width": (drafter.hidden, target.hidden),
        "target layers": (drafter.target_layers, target.layers),
        "vocabulary": (drafter.vocab, target.vocab),
    }
    for name, (found, expected) in pairs.items():
        if found != expected:
            raise CheckpointError(
                f"the drafter does not belong to this target: another {name}",
                where=f"target.model = {target.name}",
                found=f"{found} of the drafter",
                expected=f"{expected} of the target",
                remedy="name the drafter's own target: --set target.model=NAME",
            )
    beyond = [tap for tap in drafter.taps if not 0 <= tap < target.layers]
    if beyond:
        raise CheckpointError(
            "the drafter taps layers that its target has not",
            where=f"{config_name}: dflash_config.target_layer_ids",
            found=", ".join(map(str, beyond)),
            expected=f"0 to {target.layers - 1}",
            remedy="correct the file, or export the drafter again",
        )
    if not 0 <= drafter.mask_token_id < target.vocab:
        raise CheckpointError(
            "no embedding row of the target stands for the drafter's masked slots",
            where=f"{config_name}: dflash_config.mask_token_id",
            found=drafter.mask_token_id,
            expected=f"0 to {target.vocab - 1}",
            remedy="correct the file, or export the drafter again",
        )
