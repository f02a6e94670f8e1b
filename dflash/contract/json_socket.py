"""JSON documents, one a line, over a connected socket: how a trainer that stays is told what to run.

Used by one thread at each end. Knows nothing of what the messages mean.
"""

from __future__ import annotations

import json
import select
import socket
import time
from types import TracebackType
from typing import Any, Self

chunk_bytes = 65536
Message = dict[str, Any]


class PeerGone(Exception):
    """The other end has closed, or died."""


class JsonSocket:
    """One end of a conversation."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket, self._buffer = connected, b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def send(self, message: Message) -> None:
        """Say something. Raises PeerGone."""
        try:
            self._socket.sendall(json.dumps(message, allow_nan=False).encode() + b"\n")
        except OSError:
            raise PeerGone from None

    def receive(self, timeout_s: float | None = None) -> Message | None:
        """The next message; None when none came for `timeout_s` (without one: never). Raises PeerGone."""
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while b"\n" not in self._buffer:
            left_s = None if deadline_s is None else max(0.0, deadline_s - time.monotonic())
            ready, _, _ = select.select([self._socket], [], [], left_s)
            if not ready:
                return None
            try:
                data = self._socket.recv(chunk_bytes)
            except OSError:
                data = b""
            if not data:
                raise PeerGone
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        message = json.loads(line)
        if not isinstance(message, dict):
            raise PeerGone  # it speaks something else
        return message

    def close(self) -> None:
        """Hang up."""
        self._socket.close()
