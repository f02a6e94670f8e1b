"""`dflash-train regenerate`: what the trainer is asked for, and which requests never get so far."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cli.dflash_train import program
from dflash.contract.config import load_config
from dflash.contract.regeneration import RegenerationChoice

Call = Callable[..., tuple[int, str, str]]


def handed_over(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> list[str]:
    def become(_path: str, command: list[str]) -> None:
        raise StopIteration(command)

    monkeypatch.setattr("os.execv", become)
    with pytest.raises(StopIteration) as stopped:
        program.app(["regenerate", *arguments], standalone_mode=False)
    return list(stopped.value.value[4:])


def test_everything_asked_for_is_handed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    Path("prompts.jsonl").touch()
    told = ("--data", "prompts.jsonl", "--to", "out/[a] b.jsonl", "--set", "target.model=random:tiny-hybrid")
    drawn = ("--max-new-tokens", "99", "--temperature", "0.7", "--top-p", "0.8", "--seed", "5")
    others = ("--cut", "keep", "--limit", "7", "--batch-tokens", "4096", "--json")
    command, config, flag, choice, as_json = handed_over(monkeypatch, *told, *drawn, *others)
    assert (command, flag, as_json) == ("regenerate", "--choice", "--json")
    loaded = load_config(Path(config))
    assert loaded.data.path == str(tmp_path / "prompts.jsonl")
    assert loaded.target.model == "random:tiny-hybrid"
    assert RegenerationChoice.from_json(choice) == RegenerationChoice(
        to=str(tmp_path / "out/[a] b.jsonl"),
        max_new_tokens=99,
        temperature=0.7,
        top_p=0.8,
        seed=5,
        cut="keep",
        limit=7,
        batch_tokens=4096,
    )


def test_an_endpoint_is_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    where = ("--engine", "openai", "--url", "http://host:8000/v1", "--model", "m")
    *_, choice = handed_over(monkeypatch, "--to", "a", *where, "--key-variable", "KEY", "--concurrency", "3")
    found = RegenerationChoice.from_json(choice)
    assert (found.engine, found.url, found.model) == ("openai", "http://host:8000/v1", "m")
    assert (found.key_variable, found.concurrency) == ("KEY", 3)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "--to"),
        (("--to", "a", "--engine", "vllm"), "one of transformers, openai"),
        (("--to", "a", "--engine", "openai", "--model", "m"), "needs --url"),
        (("--to", "a", "--engine", "openai", "--url", "http://x/v1"), "needs --model"),
        (("--to", "a", "--engine", "openai", "--url", "host:80", "--model", "m"), "no address"),
        (("--to", "a", "--url", "http://x/v1"), "for --engine openai"),
        (("--to", "a", "--temperature", "-1"), "--temperature"),
        (("--to", "a", "--top-p", "0"), "--top-p"),
        (("--to", "a", "--max-new-tokens", "0"), "--max-new-tokens"),
        (("--to", "a", "--cut", "trim"), "one of refuse, keep"),
        (("--to", "a", "--data", "nowhere.jsonl"), "nowhere.jsonl"),
    ],
)
def test_what_does_not_go_together_is_named(arguments: tuple[str, ...], told: str, call: Call) -> None:
    code, out, err = call("dflash-train", "regenerate", *arguments)
    assert (code, out) == (2, "")
    assert told in err
