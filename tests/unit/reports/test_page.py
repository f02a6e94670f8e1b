from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from dflash.contract.errors import RunError
from reports.page import script_json, write_page


def test_numbers_that_are_none_become_null_and_the_json_is_strict() -> None:
    raw = script_json({"a": np.array([1.0, np.nan, np.inf]), "b": (np.int64(3), None), "c": float("-inf")})
    assert json.loads(raw) == {"a": [1.0, None, None], "b": [3, None], "c": None}
    assert "NaN" not in raw
    assert "Infinity" not in raw


@pytest.mark.parametrize("name", ["</script><script>alert(1)", "<!--", "]]>", "&lt;", "\u2028", "日本"])
def test_no_string_can_end_the_script_element(name: str) -> None:
    raw = str(script_json({"name": name, name: 1}))
    assert not set("<>&") & set(raw)
    assert json.loads(raw) == {"name": name, name: 1}


def test_a_page_replaces_the_old_one_whole(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_page(path, "old")
    assert write_page(path, "new") == path
    assert path.read_text() == "new"
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]


def test_an_interrupt_while_writing_leaves_the_old_page_and_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C096: the moment before the new page gets its name."""
    path = write_page(tmp_path / "report.html", "old")

    def interrupt(self: Path, target: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_page(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_name_that_is_no_unicode_is_written_all_the_same(tmp_path: Path) -> None:
    path = write_page(tmp_path / "report.html", b"a\xff".decode("utf-8", "surrogateescape"))
    assert path.read_text(encoding="utf-8") == "a\\udcff"


def test_a_place_that_cannot_be_written_is_said_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="cannot be written") as caught:
        write_page(tmp_path / "absent" / "report.html", "x")
    assert caught.value.remedy
