"""The end of a copy that tells when somebody waits for it."""

from __future__ import annotations

import threading

from dflash.links import CopyMoment


class AskedMoment(CopyMoment):
    """`asked` is set once somebody has begun to wait: a thread that was started may not have come so far."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = threading.Event()

    def wait(self) -> None:
        self.asked.set()
        super().wait()
