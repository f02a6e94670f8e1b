"""Where the installed commands begin: see that our packages are the ones that get imported, then go on.

Standard library only until that is sure: with another distribution's `dflash` in front of ours, the first
import of the contract would fail, and nobody would understand why.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import NoReturn

from cli.install_check import find_stranger


def train() -> NoReturn:
    """`dflash-train`."""
    _start("dflash-train")


def profile() -> NoReturn:
    """`dflash-profile`."""
    _start("dflash-profile")


def tune() -> NoReturn:
    """`dflash-tune`."""
    _start("dflash-tune")


def _start(name: str) -> NoReturn:
    stranger = find_stranger()
    if stranger is not None:
        print(f"{name}: {stranger}", file=sys.stderr)
        sys.exit(2)
    import_module(f"cli.{name.replace('-', '_')}").program.run()
    raise AssertionError("a program exits by itself")
