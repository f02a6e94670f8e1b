"""Writing to stdout and stderr whatever the text holds and whoever reads. Knows nothing of what is said."""

from __future__ import annotations

import os
from typing import TextIO


def write_line(stream: TextIO, text: str) -> None:
    """`text` and a line end, at once. What the encoding lacks is escaped; that nobody reads is no failure."""
    try:
        stream.write(text.encode(stream.encoding, "backslashreplace").decode(stream.encoding) + "\n")
        stream.flush()
    except BrokenPipeError:
        # The reader has left, as `| head` does; and the interpreter must not stumble over the rest when it
        # flushes at exit.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
