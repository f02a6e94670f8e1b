"""The version of this product, where it is known: a source tree that was never installed has none."""

from __future__ import annotations

from importlib import metadata
from typing import Final

_distribution: Final = "dflash-tune"


def own_version() -> str | None:
    """The version of the installed distribution; None where it runs from a bare source tree."""
    try:
        return metadata.version(_distribution)
    except metadata.PackageNotFoundError:
        return None


def own_name() -> str:
    """What a file says that it was written by: the product, with its version where that is known."""
    version = own_version()
    return _distribution if version is None else f"{_distribution} {version}"
