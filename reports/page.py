"""One self-contained HTML page: template, styles, plotly once, charts as JSON, nothing from outside.

Every string is escaped on its way in: Jinja2 escapes markup, `script_json` what would end a script
element, and a content security policy in the page forbids requests, whatever a name contains. Knows
nothing of runs or studies.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from dflash.contract.errors import RunError
from dflash.contract.rundir import printable
from dflash.contract.versions import own_name
from reports import text


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A plotly figure as a JSON specification, and the sentence that says the same without a picture."""

    name: str  # unique in the page: [a-z-]+
    spec: dict[str, Any]  # {"data": [...], "layout": {...}}; colours may be CSS variables
    caption: str
    height_px: int


def render_page(template: str, **context: object) -> str:
    """The page drawn from `template` in reports/templates."""
    return _environment().get_template(template).render(**context)


def write_page(path: Path, html: str) -> Path:
    """Replace `path` by `html`, whole or not at all. Raises RunError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        # A file name of bytes that are no UTF-8 arrives as lone surrogates.
        temporary.write_bytes(html.encode("utf-8", errors="backslashreplace"))
        temporary.replace(path)
    except OSError as error:
        raise RunError(
            f"the report cannot be written: {error}", where=str(path), remedy="choose another --out"
        ) from None
    finally:  # Ctrl-C too leaves the old page, and nothing beside it
        temporary.unlink(missing_ok=True)
    return path


def script_json(data: object) -> Markup:
    """`data` as strict JSON that is safe inside a script element. Not a number becomes null."""
    raw = json.dumps(_plain(data), allow_nan=False, separators=(",", ":"))
    for character in "<>&":  # no </script>, no <!--
        raw = raw.replace(character, f"\\u{ord(character):04x}")
    return Markup(raw)  # escaped on the line above


def _plain(data: object) -> object:
    if isinstance(data, np.ndarray):
        values: list[Any] = data.tolist()
        if data.ndim == 1 and data.dtype.kind == "f":  # a long series: no questions to each number
            return [_short(value) for value in values]
        data = values
    if isinstance(data, Mapping):
        return {str(key): _plain(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_plain(value) for value in data]
    if isinstance(data, np.generic):
        data = data.item()
    return _short(data) if isinstance(data, float) else data


def _short(value: float) -> float | None:
    """Seven digits are more than a screen has and a third of the bytes."""
    return float(f"{value:.7g}") if math.isfinite(value) else None


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"script_json": script_json, "printable": _printable}
    environment.globals |= {"asset": _asset, "plotly_js": _plotly_js, "product": own_name, "text": text}
    return environment


def _printable(value: object) -> str:
    return printable(str(value))


@cache
def _asset(name: str) -> Markup:
    """A file of reports/templates as it stands."""
    body = resources.files("reports").joinpath("templates", name).read_text(encoding="utf-8")
    return Markup(body)  # our own file


@cache
def _plotly_js() -> Markup:
    from plotly.offline import get_plotlyjs

    return Markup(get_plotlyjs())  # the library's own script
