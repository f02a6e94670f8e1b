"""Refuse to work when one of our import names belongs to somebody else.

Our packages are imported as `dflash`, `profiler`, `autotune`, `reports` and `cli`. Other distributions
use some of these names (one is called dflash too). pip lets both install and the files merge, or theirs
come first on the path; a child process would then run a mixture. Imports nothing of ours at the top, since
that is what may be broken.
"""

from __future__ import annotations

import re
from importlib.metadata import packages_distributions
from importlib.util import find_spec
from pathlib import Path

distribution = "dflash-tune"
import_names = ("dflash", "profiler", "autotune", "reports", "cli")


def find_stranger() -> str | None:
    """Which import name would load something that is not ours, in words; None when all are. Takes no time."""
    root = Path(__file__).resolve().parents[1]
    for name in import_names:
        spec = find_spec(name)
        origin = None if spec is None or spec.origin is None else Path(spec.origin).resolve()
        if origin is None or origin.parents[1] != root:
            return (
                f"`import {name}` would not load the package of {distribution}\n"
                f"  found: {origin or 'no package of that name'}\n"
                f"  expected: {root / name / '__init__.py'}\n"
                f"  remedy: reinstall {distribution}, in an environment of its own and without PYTHONPATH"
            )
    return None


def check_install() -> None:
    """Raise UsageError when an import name of ours has another owner. Reads every installed record: 0.1 s."""
    from dflash.contract.errors import UsageError

    owners = packages_distributions()
    for name in import_names:
        foreign = sorted({_normalise(owner) for owner in owners.get(name, [])} - {distribution})
        if foreign:
            raise UsageError(
                f"the import name {name!r} is claimed by another installed distribution",
                found=", ".join(foreign),
                expected=f"only {distribution} provides {', '.join(import_names)}",
                remedy=f"install {distribution} in an environment of its own; uninstalling the other one "
                f"may remove files of ours, so reinstall {distribution} after that",
            )


def _normalise(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
