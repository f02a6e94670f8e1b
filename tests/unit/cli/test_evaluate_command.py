"""`dflash-train evaluate`: what the trainer is asked for, and which requests never get so far."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.handed_over import handed_over

Call = Callable[..., tuple[int, str, str]]


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
