"""A tuner of others behind a pipe, in a Python of its own: one JSON line in, one out.

    PYTHON benchmarks/tuner_peer_process.py

First line in: {"peer", "choices", "baseline", "seed", "trials", "folder"}. Then {"ask": true}, answered with
the values, and {"tell": SCORE or null}, answered with null, in turn. Ends with its input. The other end is
`PeerProcess`, which is a Peer like any other.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.tuner_peers import Choices, Peer, Values, peers


class PeerError(Exception):
    """A peer's process is gone, or said something else than it should."""


class PeerProcess(Peer):
    """The near end of the pipe. `close` ends the process."""

    def __init__(self, python: Path, name: str, *, log: Path, **said: Any) -> None:
        self._name, self._log = name, log
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                [str(python), str(Path(__file__).resolve())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": ""},
            )
        self._say({"peer": name, **said})

    def ask(self) -> Values:
        return dict(self._say({"ask": True}))

    def tell(self, score: float | None) -> None:
        self._say({"tell": score})

    def close(self) -> None:
        """End the process."""
        with self._process:  # closes the pipes, and waits
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                self._process.communicate(timeout=10)
            self._process.kill()

    def _say(self, what: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(what) + "\n")
            self._process.stdin.flush()
            return json.loads(self._process.stdout.readline())
        except (OSError, ValueError) as error:
            self.close()
            told = self._log.read_text(errors="replace").strip().splitlines()[-3:]
            raise PeerError(f"{self._name} is gone: {' / '.join(told) or error}") from error


def serve() -> None:
    """The far end."""
    answers, sys.stdout = sys.stdout, sys.stderr  # whatever a package prints is no answer
    first = json.loads(sys.stdin.readline())
    choices: Choices = first["choices"]
    peer = peers[first["peer"]](choices, first["baseline"], first["seed"], first["trials"], first["folder"])
    print("null", file=answers, flush=True)
    for line in sys.stdin:
        said = json.loads(line)
        answer: Values | None = None
        if "ask" in said:
            answer = peer.ask()
        else:
            peer.tell(said["tell"])
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    serve()
