"""Our drafter step against speculators', in one run: loss and gradients, speed in turns, peak memory.

    python benchmarks/against_speculators.py --site DIR --out FILE.json [--cases a] [--profile]
DIR holds the unpacked wheels of speculators 0.9.0, pydantic, pydantic-core, annotated-types. Its block mask
is built uncompiled (see peer_speculators.py), everything else as it ships: float32 weights under autocast,
fused losses, the whole forward compiled. Cases are those of `drafter_step.py`. Exit 1 when loss or gradients
differ by more than rounding.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.duel import hold, parse_choice
from benchmarks.peer_specforge import open_site
from benchmarks.peer_speculators import SpeculatorsStep
from benchmarks.result_file import package_versions


def main() -> int:
    """The exit code."""
    choice = parse_choice(__doc__)
    open_site(choice.site)
    facts = {"peer": package_versions("speculators"), "peer_mask": "uncompiled"}
    return hold("against_speculators", choice, SpeculatorsStep, facts)


if __name__ == "__main__":
    sys.exit(main())
