"""What a run says to people."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

import pytest

from dflash.session import say


def test_a_console_that_is_gone_does_not_end_a_training(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)  # `dflash-train run 2>&1 | head`
    console = os.fdopen(writer, "w")
    monkeypatch.setattr(sys, "stderr", console)
    say("step 1/60")
    say("step 2/60")
    with suppress(BrokenPipeError):
        console.close()
