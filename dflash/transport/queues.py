"""Where hidden states wait: one queue for all drafters, or one each. Knows nothing of how bytes move."""

from __future__ import annotations

from dflash.batch import HiddenStates
from dflash.channel import Channel


class Queues:
    """The channels `q_hs` (shared) or `q_hs.0`, `q_hs.1`, … (per drafter), each `depth` items deep."""

    def __init__(self, kind: str, *, depth: int, targets: int, drafters: int) -> None:
        names = ["q_hs"] if kind == "shared" else [f"q_hs.{drafter}" for drafter in range(drafters)]
        self.channels: tuple[Channel[HiddenStates], ...] = tuple(Channel(name, depth) for name in names)
        for channel in self.channels:
            for _ in range(targets):
                channel.add_writer()

    def of(self, drafter: int) -> Channel[HiddenStates]:
        """The channel that `drafter` reads."""
        return self.channels[0] if len(self.channels) == 1 else self.channels[drafter]

    def close(self) -> None:
        """One target is done."""
        for channel in self.channels:
            channel.close()

    def abort(self, error: BaseException) -> None:
        """Wake everybody with the first cause."""
        for channel in self.channels:
            channel.abort(error)
