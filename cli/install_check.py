"""Refuse to work when one of our import names belongs to somebody else.

Our packages are imported as `dflash`, `profiler`, `autotune`, `reports` and `cli`. Other distributions
use some of these names (one is called dflash too). pip lets both install and the files merge, so that a
child process would run a mixture; better to stop before any child starts.
"""

from __future__ import annotations

import re
from importlib.metadata import packages_distributions
from importlib.util import find_spec
from pathlib import Path

from dflash.contract.errors import UsageError

distribution = "dflash-tune"
import_names = ("dflash", "profiler", "autotune", "reports", "cli")


def check_install() -> None:
    """Raise UsageError when an import name of ours has another owner, or would load from elsewhere."""
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
    _check_origins()


def _check_origins() -> None:
    root = Path(__file__).resolve().parents[1]
    for name in import_names:
        spec = find_spec(name)
        origin = None if spec is None or spec.origin is None else Path(spec.origin).resolve()
        if origin is None or origin.parents[1] != root:
            raise UsageError(
                f"`import {name}` would not load the package of {distribution}",
                found=str(origin or "nothing that can be imported"),
                expected=str(root / name / "__init__.py"),
                remedy="remove the other one from PYTHONPATH or the environment",
            )


def _normalise(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
