"""Pages that are generated from the code are up to date."""

from __future__ import annotations

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


def test_tables_of_results_are_up_to_date(repository: Path) -> None:
    folder = repository / "docs/benchmarks"
    results = read_results(folder)
    assert results
    assert (folder / "tables.md").read_text(encoding="utf-8") == page(results), "run `make docs`"
