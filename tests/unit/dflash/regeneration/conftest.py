"""An endpoint on this machine whose answers a test chooses."""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest


class Endpoint(ThreadingHTTPServer):
    """`respond(body) -> (status, document, headers)`; `bodies` are the requests it got, in order."""

    daemon_threads = True
    respond: Callable[[dict[str, Any]], tuple[int, Any, dict[str, str]]]

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"


class _Handler(BaseHTTPRequestHandler):
    server: Endpoint

    def do_POST(self) -> None:
        assert self.path == "/v1/chat/completions"
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.bodies.append(body)
        self.server.keys.append(self.headers["Authorization"])
        status, document, headers = self.server.respond(body)
        payload = document if isinstance(document, bytes) else json.dumps(document).encode()
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(payload))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(payload)

    def log_message(self, *_args: object) -> None:
        """Quiet."""


def completion(text: str, finish: str = "stop", **message: Any) -> tuple[int, Any, dict[str, str]]:
    choice = {"message": {"role": "assistant", "content": text, **message}, "finish_reason": finish}
    return 200, {"choices": [choice], "usage": {"completion_tokens": len(text.split())}}, {}


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    server = Endpoint()
    server.respond = lambda body: completion("answer to " + body["messages"][-1]["content"])
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def complete() -> Callable[..., tuple[int, Any, dict[str, str]]]:
    """What an endpoint answers: text, finish reason, other parts of the message."""
    return completion
