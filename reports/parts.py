"""What both reports show: badges, the verdict card, key numbers, and any manifest value in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from reports import text


class Badge(NamedTuple):
    """A short state beside the title. Tones: good, bad, emulated, or none."""

    words: str
    tone: str = ""


class Tile(NamedTuple):
    """One key number with its label and what to know about it."""

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictCard:
    """The answer first: what it is, why, and what to do."""

    verdict: str
    why: tuple[str, ...]
    numbers: str = ""  # behind the why, smaller
    next: tuple[str, ...]
    command: str = ""
    bad: bool = False


def emulated_badge(emulated: bool | None) -> list[Badge]:
    """Says that times are of logical devices, or that nobody knows; nothing on real ones."""
    if emulated is None:
        return [Badge("emulated or not: n/a, the run does not say", "emulated")]
    return [Badge("emulated: logical devices, says nothing of GPU speed", "emulated")] if emulated else []


def say(value: object) -> str:
    """A value of a manifest on one line: `torch 2.13.0, python 3.11.7`; unknown is n/a."""
    if value is None:
        return text.missing()
    if isinstance(value, Mapping | list | tuple) and not value:
        return "none"
    if value == "":
        return '""'
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(_pair(str(key), item) for key, item in value.items())
    if isinstance(value, list | tuple):
        simple = all(not isinstance(item, Mapping | list | tuple) for item in value)
        return (", " if simple else "; ").join(say(item) for item in value)
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)


def _pair(key: str, value: object) -> str:
    if key.endswith("_bytes") and isinstance(value, int) and not isinstance(value, bool):
        return f"{key.removesuffix('_bytes')} {text.data_size(value)}"
    return f"{key} {_nested(value)}"


def _nested(value: object) -> str:
    return f"({say(value)})" if isinstance(value, Mapping | list | tuple) and value else say(value)
