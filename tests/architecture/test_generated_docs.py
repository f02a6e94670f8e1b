"""Pages that are generated from the code, or tell its defaults, are up to date."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from benchmarks.tables import page, read_results
from dflash.contract.config import all_knobs


def test_knob_table_is_up_to_date(repository: Path) -> None:
    result = subprocess.run(
        [sys.executable, "scripts/knob_table.py"],
        cwd=repository,
        env={"PYTHONPATH": str(repository), "PYTHONUTF8": "1"},
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    page = (repository / "docs/knobs.md").read_text(encoding="utf-8")
    assert page == result.stdout, "run `make docs`"
    assert all(f"| `{knob.path}`" in page for knob in all_knobs)


def in_recipe(default: object, cell: str) -> bool:
    """Whether a cell of the recipe tells a knob's default. -1 is a rule, and empty is said in words."""
    if isinstance(default, bool | str):
        return str(default) in cell
    if isinstance(default, tuple):
        return default == ()
    numbers = [float(text.replace(",", "")) for text in re.findall(r"\d[\d,]*\d?\.?\d*(?:e-?\d+)?", cell)]
    return default == -1 or default in numbers


def test_the_recipe_has_every_default_that_changes_what_is_learned(repository: Path) -> None:
    page = (repository / "docs/recipe.md").read_text(encoding="utf-8")
    told = dict[str, str]()
    table = page.partition("|---|---|---|\n")[2].partition("\n\n")[0]
    for line in table.splitlines():
        names, default, source = line.strip("| ").split(" | ")
        assert source, line
        told |= dict.fromkeys(re.findall(r"`([\w.]+)`", names), default)
    learned = {knob.path: knob.default for knob in all_knobs if not knob.meta.neutral}
    assert len(learned) > 40
    assert learned.keys() <= told.keys(), learned.keys() - told.keys()
    assert {path: told[path] for path, default in learned.items() if not in_recipe(default, told[path])} == {}


def test_tables_of_results_are_up_to_date(repository: Path) -> None:
    folder = repository / "docs/benchmarks"
    results = read_results(folder)
    assert results
    assert (folder / "tables.md").read_text(encoding="utf-8") == page(results), "run `make docs`"
