"""What every benchmark writes: one JSON document with machine, versions, command and date beside its figures.

Knows nothing of what was measured.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
import transformers

from dflash.contract.rundir import utc_now, write_text


def write_result(path: Path | None, benchmark: str, figures: Mapping[str, Any]) -> dict[str, Any]:
    """The whole document of a benchmark; written to `path` unless that is None."""
    document = {"benchmark": benchmark, "utc": utc_now(), **describe_machine(), **figures}
    write_beside(path, "", json.dumps(document, indent=1, allow_nan=False) + "\n")
    return document


def write_beside(path: Path | None, ending: str, text: str) -> None:
    """`text` to `path`, or with `ending` to a text file named after it; nothing when `path` is None.

    The file is replaced whole, so that a page that writes after every row may be cut off at any moment.
    """
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path.with_name(f"{path.stem}_{ending}.txt") if ending else path, text)


def describe_machine() -> dict[str, Any]:
    """Hardware, versions and command of this process. No path of the machine."""
    gpus = range(torch.cuda.device_count() if torch.cuda.is_available() else 0)
    script, *options = sys.argv
    return {
        "command": " ".join(["python", f"benchmarks/{Path(script).name}", *(Path(o).name for o in options)]),
        "gpus": [torch.cuda.get_device_name(index) for index in gpus],
        "cpu_count": os.cpu_count(),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            **package_versions("triton", "flash-attn", "flash-linear-attention"),
        },
    }


def package_versions(*names: str) -> dict[str, str]:
    """Of those packages that are installed."""
    found = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def summary(values: Sequence[float], digits: int = 3) -> dict[str, float | int]:
    """Median, smallest and largest of some measurements, and how many there are."""
    return {
        "median": round(statistics.median(values), digits),
        "smallest": round(min(values), digits),
        "largest": round(max(values), digits),
        "n": len(values),
    }
