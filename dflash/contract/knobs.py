"""A knob is declared once, as metadata on the config field that holds it.

From that declaration come the TOML key, `--set`, the help text, the search space, the table in
docs/knobs.md and the label in reports. Knows nothing of what any particular knob does.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dflash.contract.errors import ConfigError, nearest

type_names = {int: "integer", float: "number", str: "text", bool: "true or false"}


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobMeta:
    """What the declaration says beyond name, type and default."""

    help: str
    unit: str = ""
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    neutral: bool  # does not change the training signal, so a search may vary it unasked
    restart: bool = True  # a change needs a new process
    short: str | None = None  # a second name accepted by --set


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """One setting, known by its dotted path (`transport.depth`)."""

    path: str
    type: type
    default: Any
    meta: KnobMeta

    @property
    def is_list(self) -> bool:
        return self.type is tuple

    def range_text(self) -> str:
        """The permitted values in words."""
        if self.meta.choices:
            return ", ".join(self.meta.choices)
        low, high = self.meta.low, self.meta.high
        if low is None and high is None:
            return "comma-separated integers" if self.is_list else type_names[self.type]
        if high is None:
            return f"{low:g} or more"
        return f"at most {high:g}" if low is None else f"{low:g} to {high:g}"

    def parse(self, text: str) -> Any:
        """The value that `text` (from a command line) stands for. Raises ConfigError."""
        try:
            return self.check(self._convert(text.strip()))
        except ValueError:
            raise self._error(text) from None

    def _convert(self, text: str) -> Any:
        if self.is_list:
            return tuple(int(part) for part in text.strip("[]").split(",") if part.strip())
        if self.type is bool:
            words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
            if text.lower() not in words:
                raise ValueError
            return words[text.lower()]
        if self.type is int:
            return int(text.replace("_", ""))
        return self.type(text)

    def check(self, value: Any) -> Any:
        """`value` in its proper type, or ConfigError when type or range is wrong."""
        if self.type is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if self.is_list and isinstance(value, list):
            value = tuple(value)
        kind: type = type(value)  # exactly: True is no integer here
        if kind is not self.type:
            raise self._error(value)
        if self.is_list and not all(type(item) is int for item in value):
            raise self._error(value)
        if self.meta.choices and value not in self.meta.choices:
            near = nearest(str(value), self.meta.choices)
            raise self._error(value, f"did you mean {near!r}?" if near else None)
        if self.type in (int, float) and not self._in_range(value):
            raise self._error(value)
        return value

    def _in_range(self, value: float) -> bool:
        low = -math.inf if self.meta.low is None else self.meta.low
        high = math.inf if self.meta.high is None else self.meta.high
        return math.isfinite(value) and low <= value <= high

    def _error(self, value: object, remedy: str | None = None) -> ConfigError:
        unit = f" {self.meta.unit}" if self.meta.unit else ""
        kind = "" if self.meta.choices or self.is_list else f"{type_names[self.type]}, "
        expected = self.range_text()
        if expected != type_names.get(self.type):
            expected = kind + expected
        return ConfigError(
            f"the value of {self.path} is not acceptable",
            where=self.path,
            found=repr(value),
            expected=expected + unit,
            remedy=remedy,
        )


def knob(
    default: Any,
    *,
    help: str,  # noqa: A002 - the word users know
    neutral: bool,
    unit: str = "",
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] = (),
    restart: bool = True,
    short: str | None = None,
) -> Any:
    """Declare a config field as a knob."""
    meta = KnobMeta(
        help=help,
        unit=unit,
        low=low,
        high=high,
        choices=choices,
        neutral=neutral,
        restart=restart,
        short=short,
    )
    return dataclasses.field(default=default, metadata={"knob": meta})


def knobs_of(config_class: type, prefix: str = "") -> tuple[Knob, ...]:
    """All knobs of a (nested) config dataclass, in declaration order."""
    found: list[Knob] = []
    hints = typing.get_type_hints(config_class)
    for field in dataclasses.fields(config_class):
        hint = hints[field.name]
        if dataclasses.is_dataclass(hint):
            found += knobs_of(typing.cast(type, hint), f"{prefix}{field.name}.")
            continue
        origin = typing.get_origin(hint)
        kind = origin if origin is not None and origin is not types.UnionType else hint
        found.append(
            Knob(
                path=prefix + field.name,
                type=kind,
                default=field.default,
                meta=field.metadata["knob"],
            )
        )
    return tuple(found)


def find_knob(name: str, knobs: Sequence[Knob]) -> Knob:
    """The knob called `name`: its path, its short name, or a last part that only one knob has."""
    by_path = {k.path: k for k in knobs}
    if name in by_path:
        return by_path[name]
    short = [k for k in knobs if k.meta.short == name]
    leaf = [k for k in knobs if k.path.rsplit(".", 1)[-1] == name]
    for group in (short, leaf):
        if len(group) == 1:
            return group[0]
    if len(leaf) > 1:
        raise ConfigError(
            f"{name!r} could mean several knobs",
            where=f"--set {name}",
            expected=" or ".join(k.path for k in leaf),
            remedy="write the full path",
        )
    near = nearest(name, [*by_path, *(k.path.rsplit(".", 1)[-1] for k in knobs)])
    if near is not None and near not in by_path:
        near = next(k.path for k in knobs if k.path.endswith("." + near))
    raise ConfigError(
        f"there is no knob called {name!r}",
        where=name,
        remedy=f"did you mean {near!r}? " * (near is not None) + "`dflash-train run --help-knobs` lists all",
    )


def parse_assignments(assignments: Sequence[str], knobs: Sequence[Knob]) -> dict[str, Any]:
    """`["transport.depth=2", …]` as {path: value}; later ones win. Raises ConfigError."""
    values: dict[str, Any] = {}
    for text in assignments:
        name, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(
                f"--set needs knob=value, not {text!r}", remedy="for example --set transport.depth=2"
            )
        found = find_knob(name.strip(), knobs)
        values[found.path] = found.parse(value)
    return values


def flatten(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as {dotted path: value}."""
    flat: dict[str, Any] = {}
    for key, value in nested.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat
