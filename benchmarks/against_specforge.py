"""Our drafter step against SpecForge's, in one run: loss and gradients, speed in turns, peak memory.

    python benchmarks/against_specforge.py --site DIR --out FILE.json [--cases a b] [--profile]
DIR holds the unpacked wheels of specforge 0.2.0 and liger-kernel; nothing else is needed beside torch and
transformers. SpecForge runs in its strongest setting on CUDA: FlexAttention, chunks of 128 blocks, Liger.
Cases are those of `drafter_step.py`. Both start from the same weights, tokens, anchors and loss weights; the
gradients of both are held against a float32 run. Exit 1 when they differ by more than rounding.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.duel import hold, parse_choice
from benchmarks.peer_specforge import SpecForgeStep, open_site
from benchmarks.result_file import package_versions


def main() -> int:
    """The exit code."""
    choice = parse_choice(__doc__)
    open_site(choice.site)
    facts = {"peer": package_versions("specforge", "liger-kernel")}
    return hold("against_specforge", choice, lambda case: SpecForgeStep(case, liger=not choice.tiny), facts)


if __name__ == "__main__":
    sys.exit(main())
