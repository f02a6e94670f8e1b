"""`dflash-train export`: what the trainer is asked for, and which requests never get so far."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.handed_over import handed_over

Call = Callable[..., tuple[int, str, str]]


def test_source_directory_and_dtype_are_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = handed_over(monkeypatch, "export", "runs/[a] b", "--to", "out")
    assert plain == ["export", "runs/[a] b", "--to", "out", "--dtype", "bfloat16"]
    other = handed_over(monkeypatch, "export", "x", "--to", "out", "--dtype", "float32", "--json")
    assert other == ["export", "x", "--to", "out", "--dtype", "float32", "--json"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["runs/a"], "--to"),
        (["--to", "out"], "RUN_OR_CHECKPOINT"),
        (["runs/a", "--to", "out", "--dtype", "int8"], "bfloat16"),
    ],
)
def test_what_is_missing_or_unknown_is_named(arguments: list[str], told: str, call: Call) -> None:
    code, _, err = call("dflash-train", "export", *arguments)
    assert code == 2
    assert told in err
