"""Who holds something: a process told from all others by pid, start and boot, written into a file.

A pid alone is no proof, for pids are used again; nor is a name. Linux only. Knows nothing of what is held.
"""

from __future__ import annotations

import json
import os
import socket
from dataclasses import asdict, dataclass
from typing import Self

from dflash.contract.processes import boot_id, identify, is_alive


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """One process of one boot of one machine."""

    pid: int
    start_ticks: int | None  # since boot; None: not known
    boot_id: str | None
    host: str

    @classmethod
    def of_process(cls, pid: int) -> Self:
        """The lease of a process of this machine."""
        return cls(
            pid=pid,
            start_ticks=identify(pid)["start_ticks"],
            boot_id=boot_id(),
            host=socket.gethostname(),
        )

    @classmethod
    def own(cls) -> Self:
        """The lease of this process."""
        return cls.of_process(os.getpid())

    @classmethod
    def read(cls, text: str) -> Self | None:
        """The lease that `render` wrote; None for anything else."""
        try:
            return cls(**json.loads(text))
        except (ValueError, TypeError):
            return None

    @property
    def is_here(self) -> bool:
        """Whether it speaks of this boot of this machine: only then can be known whether it lives."""
        return self.boot_id is not None and self.boot_id == boot_id()

    @property
    def is_alive(self) -> bool:
        """Whether the very process is still there, as far as this machine can know."""
        return self.is_here and is_alive(self.pid, self.start_ticks)

    def render(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self))
