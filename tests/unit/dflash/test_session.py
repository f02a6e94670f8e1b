"""What a run says to people and to programs, and who may have left."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable

import pytest

from dflash.session import print_document, say


@pytest.mark.parametrize(
    ("stream", "talk"),
    [("stderr", lambda: say("step 1/60")), ("stdout", lambda: print_document({"status": "finished"}))],
)
def test_a_reader_who_has_left_does_not_end_a_training(
    monkeypatch: pytest.MonkeyPatch, stream: str, talk: Callable[[], None]
) -> None:
    reader, writer = os.pipe()
    os.close(reader)  # `dflash-train run | head`
    with os.fdopen(writer, "w") as left:
        monkeypatch.setattr(sys, stream, left)
        talk()
        talk()


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_a_document_survives_any_encoding(monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding=encoding))
    print_document({"run": "läufe/\udcff"})  # a path that is not UTF-8
    assert json.loads(written.getvalue()) == {"run": "läufe/\udcff"}
