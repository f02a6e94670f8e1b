"""Every page can be called as its text says: `python benchmarks/page.py`, with nothing set."""

from __future__ import annotations

from pathlib import Path

import pytest

pages = sorted((Path(__file__).resolve().parents[3] / "benchmarks").glob("*.py"))


@pytest.mark.parametrize("page", pages, ids=lambda page: page.stem)
def test_a_page_finds_the_project_before_it_imports_from_it(page: Path) -> None:
    lines = page.read_text(encoding="utf-8").splitlines()
    if 'if __name__ == "__main__":' not in lines:
        return
    imports = [number for number, line in enumerate(lines) if line.startswith("from benchmarks.")]
    finds = [number for number, line in enumerate(lines) if line.startswith("sys.path.insert(")]
    # Called as a script, Python looks beside it, not in the folder above.
    assert not imports or finds[:1] < imports[:1]
    assert not imports or finds
