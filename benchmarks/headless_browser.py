"""A headless Chromium driven over its debugging pipe: no port, no library, no network.

Knows nothing of what the page is.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

flags: Final = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--remote-debugging-pipe",
)


class Browser:
    """One browser with one tab. `log` collects what the page's console and its errors said."""

    def __init__(self, program: str, profile: Path, *, timeout_s: float = 60.0) -> None:
        self._timeout_s = timeout_s
        their_in, self._to = os.pipe()
        self._from, their_out = os.pipe()
        self._pid = _start(program, profile, their_in, their_out)
        self._number, self._session, self._rest = 0, "", b""
        self.log: list[str] = []
        self.requests: list[str] = []
        try:
            self._attach()
        except BaseException:
            self.close()
            raise

    def _attach(self) -> None:
        target = self._ask("Target.createTarget", {"url": "about:blank"})["targetId"]
        attached = self._ask("Target.attachToTarget", {"targetId": target, "flatten": True})
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._ask(f"{domain}.enable")
        self._ask("Performance.enable", {"timeDomain": "threadTicks"})
        offline = {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
        self._ask("Network.emulateNetworkConditions", offline)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the browser. A second call does nothing."""
        if self._pid:
            os.close(self._to)
            os.close(self._from)
            os.kill(self._pid, signal.SIGTERM)
            os.waitpid(self._pid, 0)
            self._pid = 0

    def look(self, *, width: int, height: int, scheme: str = "light", scale: float = 1.0) -> None:
        """The size of the window in CSS pixels and the colour scheme that the reader prefers."""
        size = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": False}
        self._ask("Emulation.setDeviceMetricsOverride", size)
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self._ask("Emulation.setEmulatedMedia", {"features": [feature]})

    def open(self, path: Path, ready: str) -> None:
        """Open a file and wait until the expression `ready` is true in it."""
        self._ask("Page.navigate", {"url": path.resolve().as_uri()})
        deadline = time.monotonic() + self._timeout_s
        while self.evaluate(ready) is not True:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{path.name} was not ready after {self._timeout_s:g} s: {self.log}")
            time.sleep(0.02)

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression; None where it throws."""
        asked = {"expression": expression, "returnByValue": True, "awaitPromise": True}
        return self._ask("Runtime.evaluate", asked)["result"].get("value")

    def main_thread_cpu_s(self) -> float:
        """CPU seconds of the page's main thread since the tab was opened, whoever else has the machine."""
        metrics = self._ask("Performance.getMetrics")["metrics"]
        return float(next(metric["value"] for metric in metrics if metric["name"] == "TaskDuration"))

    def press(self, key: str) -> None:
        """A key goes down and up: Tab or Enter."""
        codes = {"Tab": 9, "Enter": 13}
        stroke: dict[str, Any] = {"key": key, "code": key, "windowsVirtualKeyCode": codes[key]}
        typed = {"text": "\r"} if key == "Enter" else {}
        self._ask("Input.dispatchKeyEvent", {"type": "keyDown", **stroke, **typed})
        self._ask("Input.dispatchKeyEvent", {"type": "keyUp", **stroke})

    def screenshot(self, **options: Any) -> str:
        """A picture of the window, base64; options of Page.captureScreenshot."""
        return str(self._ask("Page.captureScreenshot", options)["data"])

    def pdf(self) -> str:
        """The page as printed on A4, base64."""
        return str(self._ask("Page.printToPDF", {"preferCSSPageSize": True, "printBackground": True})["data"])

    def _ask(self, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": dict(params or {})}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return dict(answer["result"])
            self._note(answer)

    def _note(self, event: Mapping[str, Any]) -> None:
        method, params = event.get("method"), event.get("params", {})
        if method == "Runtime.consoleAPICalled":
            self.log.append(f"{params['type']}: {[arg.get('value') for arg in params['args']]}")
        elif method == "Runtime.exceptionThrown":
            self.log.append(f"exception: {params['exceptionDetails'].get('text')}")
        elif method == "Log.entryAdded":
            self.log.append(f"{params['entry']['level']}: {params['entry']['text']}")
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            if not select.select([self._from], [], [], self._timeout_s)[0]:
                raise TimeoutError("the browser does not answer")
            piece = os.read(self._from, 1 << 20)
            if not piece:
                raise RuntimeError("the browser ended")
            self._rest += piece
        message, _, self._rest = self._rest.partition(b"\0")
        return dict(json.loads(message))


def _start(program: str, profile: Path, their_in: int, their_out: int) -> int:
    """The process id of a browser with the pipes at descriptors 3 and 4, where it looks for them."""
    # Out of the way of 3 and 4 first, whatever numbers they got.
    high_in, high_out = (fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (their_in, their_out))
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
        (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
        (os.POSIX_SPAWN_DUP2, high_in, 3),
        (os.POSIX_SPAWN_DUP2, high_out, 4),
        (os.POSIX_SPAWN_CLOSE, high_in),
        (os.POSIX_SPAWN_CLOSE, high_out),
    ]
    command = [program, *flags, f"--user-data-dir={profile}", "about:blank"]
    try:
        return os.posix_spawn(program, command, os.environ, file_actions=actions)
    finally:
        for fd in (high_in, high_out, their_in, their_out):
            os.close(fd)
