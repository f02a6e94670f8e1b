"""All recorded results as tables: `make docs` writes what this prints to docs/benchmarks/tables.md.

Reads every JSON file of docs/benchmarks. A kind of benchmark with a renderer in `benchmarks/table_kinds.py`
gets its own table; of any other the first list of rows is shown as it is. Knows nothing of good or bad.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.table_cells import table
from benchmarks.table_kinds import kinds, plain_rows

folder = Path(__file__).resolve().parents[1] / "docs/benchmarks"


def page(results: dict[str, dict[str, Any]]) -> str:
    """The page for {file name: document}, in the order of names."""
    origin = "Drawn by `make docs` from the JSON files beside this page; see [README.md](README.md)."
    parts = ["# All results as tables", origin]
    for name in sorted(results):
        kind, document = kind_of(name, results[name]), results[name]
        parts += [f"## {kind.replace('_', ' ')}: {name}", circumstances(name, document)]
        parts.append(table(*kinds.get(kind, plain_rows)(document)))
    return "\n\n".join(part for part in parts if part) + "\n"


def kind_of(name: str, document: dict[str, Any]) -> str:
    """What was measured: as the document says, else from names like `links_h200x2_2026-11-30.json`."""
    return str(document.get("benchmark") or name.removesuffix(".json").rsplit("_", 2)[0])


def circumstances(name: str, document: dict[str, Any]) -> str:
    """Date, hardware, versions, command and note, as far as the document has them."""
    when = document.get("utc") or document.get("when") or document.get("measured_utc")
    gpus = document.get("gpus")
    hardware = None
    if isinstance(gpus, list):
        models = [gpu if isinstance(gpu, str) else str(gpu.get("name")) for gpu in gpus]
        hardware = f"{len(models)} × {models[0]}" if models else "no GPU"
    versions = document.get("versions") or {}
    command = document.get("command")
    if isinstance(command, list):
        command = " ".join(part if part.startswith("benchmarks/") else Path(part).name for part in command)
    told = [
        f"[{name}]({name})",
        when,
        hardware,
        ", ".join(f"{key} {value}" for key, value in versions.items() if isinstance(value, str)),
        f"`{command}`" if command else None,
        document.get("note"),
    ]
    return "; ".join(str(part) for part in told if part)


def read_results(where: Path) -> dict[str, dict[str, Any]]:
    """Every document of a folder by file name."""
    return {path.name: json.loads(path.read_text(encoding="utf-8")) for path in where.glob("*.json")}


if __name__ == "__main__":
    sys.stdout.write(page(read_results(folder)))
