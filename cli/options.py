"""The options that several commands share: which configuration, which changes to it, which form of output."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.console import say
from dflash.contract.config import TrainConfig, all_knobs, from_values, load_config
from dflash.contract.errors import CheckpointError, DataError
from dflash.contract.knobs import find_knob
from dflash.contract.rundir import RunDir

ConfigFile = Annotated[
    Path | None,
    typer.Argument(metavar="CONFIG", help="TOML file of knobs. Without it: the embedded default."),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KNOB=VALUE", help="Change a knob; may be given again and again."),
]
DataFile = Annotated[
    str | None,
    typer.Option(
        "--data",
        metavar="PATH",
        help="Conversations: JSONL, Parquet or Arrow, file or directory (data.path).",
    ),
]
Strict = Annotated[
    bool | None, typer.Option("--strict", help="Stop at the first row that cannot be trained (data.strict).")
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on stdout, and nothing else there.")]


def configure(path: Path | None, assignments: list[str] | None, options: Mapping[str, Any]) -> TrainConfig:
    """The checked configuration: the file, then --set, then `options` by knob path where they are not None.

    Paths become absolute, so that the copy kept with a run means the same files from anywhere. Raises
    ConfigError, and DataError where the data file is not there.
    """
    config = load_config(path, assignments or [])
    given = {name: find_knob(name, all_knobs).check(v) for name, v in options.items() if v is not None}
    changes: dict[str, Any] = {**config.values(), **given}
    for name in ("data.path", "run.resume"):
        if changes[name]:
            changes[name] = str(Path(changes[name]).absolute())
    config = config.replacing(changes)
    _check_there(config.data.path)
    return config


def tell_small_default(path: Path | None, config: TrainConfig) -> None:
    """Say what a real target would be trained with that is cut down for two CPU cores, `path` being None."""
    if path is not None or config.target.model.startswith("random:"):
        return
    small, recipe, now = load_config(None).values(), from_values({}).values(), config.values()
    learned = [knob.path for knob in all_knobs if not knob.meta.neutral]
    cut = [f"{name}={now[name]}" for name in learned if now[name] == small[name] != recipe[name]]
    if cut:
        say(
            f"warning: no CONFIG was named, so {', '.join(cut)} are the embedded default's, made for two CPU "
            "cores; with any TOML file as CONFIG, an empty one too, they are the recipe's (docs/recipe.md)"
        )


def find_settings(resumed: Path | None) -> Path | None:
    """The configuration of the run that a checkpoint, or what holds some, is of; None: it lies alone.

    Raises CheckpointError for a path that is not there.
    """
    if resumed is None:
        return None
    if not resumed.exists():
        raise CheckpointError("no checkpoint to resume from", where=str(resumed), found="no such path")
    around = [resumed, *resumed.absolute().parents[:2]]  # RUN, RUN/checkpoints or RUN/checkpoints/step-N
    runs = [RunDir(path) for path in around]
    return next((run.config_path for run in runs if run.config_path.is_file()), None)


def _check_there(data_path: str) -> None:
    """What can be told of the data at once; the trainer, which reads it, tells the rest."""
    if data_path and (trouble := _trouble(Path(data_path))):
        raise DataError(
            "the data cannot be used",
            where=data_path,
            found=trouble,
            expected="a JSONL, JSON, Parquet or Arrow file of conversations, or a directory of such",
        )


def _trouble(path: Path) -> str:
    """Why there is nothing at a path, as far as that is known; empty where there is."""
    try:
        if path.exists():
            return ""
        return "a link to nothing" if path.is_symlink() else "nothing of that name"
    except OSError as error:  # a name that is too long, a directory that may not be looked into
        return error.strerror or str(error)
