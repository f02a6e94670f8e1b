"""`dflash-train evaluate`: what the trainer is asked for, and which requests never get so far."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

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


def test_everything_is_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    defaults = ["--answers", "greedy", "--prompts", "64", "--max-new-tokens", "256", "--batch", "8"]
    assert handed_over(monkeypatch, "evaluate", "runs/[a] b") == ["evaluate", "runs/[a] b", *defaults]
    told = handed_over(
        monkeypatch,
        *("evaluate", "x", "--set", "target.dtype=float32", "--data", "talks.jsonl", "--answers", "data"),
        *("--prompts", "3", "--max-new-tokens", "9", "--batch", "2", "--json"),
    )
    assert told == [
        *(
            "evaluate",
            "x",
            "--set",
            "target.dtype=float32",
            "--set",
            f"data.path={Path('talks.jsonl').absolute()}",
        ),
        *("--answers", "data", "--prompts", "3", "--max-new-tokens", "9", "--batch", "2", "--json"),
    ]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "RUN_OR_CHECKPOINT_OR_EXPORT"),
        (["x", "--answers", "sampled"], "greedy"),
        (["x", "--prompts", "0"], "--prompts"),
        (["x", "--max-new-tokens", "0"], "--max-new-tokens"),
        (["x", "--batch", "no"], "--batch"),
        (["x", "--set", "target.modle=y"], "target.model"),
    ],
)
def test_what_is_missing_or_unknown_is_named(arguments: list[str], told: str, call: Call) -> None:
    code, _, err = call("dflash-train", "evaluate", *arguments)
    assert code == 2
    assert told in err
