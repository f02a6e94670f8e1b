"""A space in words of its user: a TOML file of choices, and knobs that are held.

    changes_training = ["drafter.layers"]   # allowed to be searched though they change what is trained
    only = true                             # nothing else is searched; without it the machine's choices stay

    [space]
    "pipeline.token_budget" = [8192, 16384]
    "drafter.layers" = [3, 5]

Every mistake is one message that names the file and the key. Knows nothing of machines.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autotune.default_space import default_choices, make_space
from autotune.machine import Machine
from autotune.space import Dimension, SearchSpace
from dflash.contract.config import TrainConfig, all_knobs
from dflash.contract.errors import ConfigError, nearest
from dflash.contract.knobs import find_knob, flatten

settings = ("changes_training", "only")


@dataclass(frozen=True, slots=True)
class SpaceFile:
    """What a file asks for."""

    path: Path
    choices: Mapping[str, tuple[Any, ...]]  # by dotted path
    changes_training: tuple[str, ...] = ()
    only: bool = False

    def where(self, key: str) -> str:
        """A place in the file, for messages."""
        return f"{self.path}: {key}"


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a user asks of the space: a file, and knobs that are held at a value."""

    file: SpaceFile | None = None
    fixed: Mapping[str, Any] = field(default_factory=dict)


def read_space_file(path: Path) -> SpaceFile:
    """The file's choices, each checked as its knob is. Raises ConfigError."""
    data = _read(path)
    table = dict(_table(data, path))
    given = {key: data.get(key, table.pop(key, None)) for key in settings}
    for key in data:
        if key not in (*settings, "space"):
            near = nearest(key, [*settings, "space"])
            raise ConfigError(
                f"{key!r} means nothing in a space file",
                where=f"{path}: {key}",
                expected="a table [space], changes_training, only",
                remedy=f"did you mean {near!r}?" if near else "choices of knobs belong under [space]",
            )
    allowed = _allowed(given["changes_training"], path)
    choices: dict[str, tuple[Any, ...]] = {}
    for key, value in flatten(table).items():
        name, values = _dimension(path, key, value, allowed)
        if name in choices:
            raise ConfigError("a knob is named twice", where=f"{path}: {key}", found=name)
        choices[name] = values
    for name in allowed:
        if name not in choices:
            raise ConfigError(
                "changes_training names a knob without choices",
                where=f"{path}: changes_training",
                found=name,
                remedy=f'add "{name}" = [ … ] under [space], or take it out',
            )
    if not choices:
        raise ConfigError("the file names no choices", where=f"{path}: space", expected='"knob" = [ … ]')
    return SpaceFile(path, choices, allowed, _only(given["only"], path))


def shape_space(base: TrainConfig, machine: Machine, wishes: Wishes) -> SearchSpace:
    """The machine's space with the choices of the file in place of its own, without the knobs that are held.

    Raises ConfigError naming file and key, and DeviceError where the start cannot run.
    """
    base = base.replacing(wishes.fixed)
    file = wishes.file
    choices = {} if file is not None and file.only else default_choices(base, machine)
    if file is not None:
        for path, values in file.choices.items():
            _check_against(file, path, values, base, wishes.fixed)
        choices |= file.choices
    choices = {path: values for path, values in choices.items() if path not in wishes.fixed}
    return make_space(base, machine, choices, file.changes_training if file else ())


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError("there is no such space file", where=str(path)) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the space file cannot be read: {error}", where=str(path)) from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"the space file is not valid TOML: {error}", where=str(path)) from None


def _table(data: Mapping[str, Any], path: Path) -> Mapping[str, Any]:
    table = data.get("space")
    if not isinstance(table, Mapping):
        raise ConfigError(
            "a space file needs a table of choices",
            where=f"{path}: space",
            found="nothing" if table is None else repr(table),
            expected='[space] and lines like "pipeline.token_budget" = [8192, 16384]',
        )
    return table


def _allowed(value: Any, path: Path) -> tuple[str, ...]:
    if value is None:
        return ()
    where = f"{path}: changes_training"
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise ConfigError("changes_training is a list of knobs", where=where, found=repr(value))
    names = []
    for name in value:
        knob = _knob(name, where)
        if knob.meta.neutral:
            raise ConfigError(
                f"{knob.path} does not change what is trained", where=where, remedy="take it out of the list"
            )
        names.append(knob.path)
    return tuple(names)


def _only(value: Any, path: Path) -> bool:
    if value is None or isinstance(value, bool):
        return bool(value)
    raise ConfigError("only is true or false", where=f"{path}: only", found=repr(value))


def _dimension(path: Path, key: str, value: Any, allowed: Sequence[str]) -> tuple[str, tuple[Any, ...]]:
    where = f"{path}: {key}"
    knob = _knob(key, where)
    if not isinstance(value, list):
        raise ConfigError("choices are a list", where=where, found=repr(value), expected=f"[{value!r}, …]")
    if not knob.meta.neutral and knob.path not in allowed:
        raise ConfigError(
            f"{knob.path} changes what is trained, so results would not be comparable in loss",
            where=where,
            remedy=f'to search it all the same, add the line changes_training = ["{knob.path}"]',
        )
    try:
        dimension = Dimension(knob.path, value, changes_training=True)
    except ConfigError as error:
        raise ConfigError(
            error.what, where=where, found=error.found, expected=error.expected, remedy=error.remedy
        ) from None
    return knob.path, dimension.choices


def _knob(name: str, where: str) -> Any:
    try:
        return find_knob(name, all_knobs)
    except ConfigError as error:
        raise ConfigError(error.what, where=where, expected=error.expected, remedy=error.remedy) from None


def _check_against(
    file: SpaceFile, path: str, values: tuple[Any, ...], base: TrainConfig, fixed: Mapping[str, Any]
) -> None:
    """The file against the command line: what is held is not searched, and the start lies in the space."""
    if path in fixed:
        raise ConfigError(
            f"{path} is searched and held at once",
            where=file.where(path),
            found=f"--fix {path}={fixed[path]}",
            remedy="take out one of the two",
        )
    own = base.values()[path]
    if own not in values:
        raise ConfigError(
            "the starting configuration lies outside the space",
            where=file.where(path),
            found=repr(own),
            expected=f"one of {', '.join(map(repr, values))}",
            remedy=f"add {own!r} to the choices, or start from another with --set {path}={values[0]}",
        )
