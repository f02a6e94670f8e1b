"""`dflash-train export`: what the trainer is asked for, and which requests never get so far."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cli.dflash_train import program

Call = Callable[..., tuple[int, str, str]]


def handed_over(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> list[str]:
    def become(_path: str, command: list[str]) -> None:
        raise StopIteration(command)

    monkeypatch.setattr("os.execv", become)
    with pytest.raises(StopIteration) as stopped:
        program.app(list(arguments), standalone_mode=False)
    assert stopped.value.value[1:4] == ["-P", "-m", "dflash"]
    return list(stopped.value.value[4:])


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
