"""Rows prepared in this process: what is told of slow ones, and how far it is."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from dflash.contract.config import TrainConfig, load_config
from dflash.contract.errors import DataError
from dflash.data import preparation
from dflash.data.conversations import Conversation
from dflash.data.preparation import cut_rows, in_process
from dflash.data.sources import RawRow
from dflash.data.tokenizer import ChatTokenizer, open_embedded_tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> ChatTokenizer:
    return open_embedded_tokenizer()


def configure(**knobs: object) -> TrainConfig:
    return load_config(None).replacing({"data.max_length": 256, "data.path": "rows", **knobs})


def slowly(
    tokenizer: ChatTokenizer, monkeypatch: pytest.MonkeyPatch, line: int, told: threading.Event
) -> None:
    """Time passes for that row alone, a second, and it is not done before it has been told of."""
    render, clock = tokenizer.render, SimpleNamespace(now_s=0.0)

    def render_slowly(messages, tools=(), untrained=()):
        if messages[0]["content"] == str(line):
            clock.now_s += 1.0
            assert told.wait(30)
        return render(messages, tools, untrained)

    monkeypatch.setattr(preparation, "time", SimpleNamespace(monotonic=lambda: clock.now_s))

    monkeypatch.setattr(tokenizer, "render", render_slowly)


def talks(number: int) -> Iterator[Conversation]:
    for line in range(1, number + 1):
        turns = ({"role": "user", "content": str(line)}, {"role": "assistant", "content": "an answer"})
        yield Conversation(file="rows", line=line, id=None, messages=turns)


def test_a_slow_row_in_this_process_is_told_while_it_lasts(tokenizer, monkeypatch) -> None:
    lines, told = list[str](), threading.Event()
    slowly(tokenizer, monkeypatch, 5, told)

    def tell(text: str) -> None:
        lines.append(text)
        told.set()

    with pytest.raises(DataError, match="takes too long") as caught:
        list(in_process(talks(9), configure(**{"data.row_seconds": 0.2}), tokenizer, tell))
    assert caught.value.where == "rows, line 5"
    (text,) = lines
    assert "rows, line 5" in text


def test_progress_is_told(tokenizer, monkeypatch) -> None:
    monkeypatch.setattr(preparation, "progress_seconds", 0.0)
    lines: list[str] = []
    list(in_process(talks(300), configure(), tokenizer, lines.append))
    assert [line.split()[1] for line in lines] == ["128", "256", "300"]


@pytest.mark.parametrize("form", [lambda text: text.encode(), lambda text: {"messages": [{"content": text}]}])
def test_chunks_of_long_rows_are_short(form) -> None:
    """So that memory holds what waits for workers, whatever rows are like."""
    short, long = form("x" * 10), form("x" * 400_000)
    payloads = [*[short] * 200, *[long] * 7, short]
    rows = [RawRow(file="rows", line=line, payload=payload) for line, payload in enumerate(payloads)]
    chunks = list(cut_rows(iter(rows)))
    assert [row for chunk in chunks for row in chunk] == rows
    assert [len(chunk) for chunk in chunks] == [128, 75, 3, 2]
