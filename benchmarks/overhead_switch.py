"""How one process tells a trainer to tell of itself or not, and when each of its batches ended.

Imported by both sides of `profiler_overhead.py`; only the trainer's side emits. Off, a probe behaves as in a
trainer that is not recorded, and not as a log that throws rows away. Knows nothing of samplers.
"""

from __future__ import annotations

import mmap
import time
from array import array
from collections.abc import Iterable
from pathlib import Path

from dflash.contract.events import Probe, RowSink
from dflash.contract.instrument import Instrument


class Switch:
    """Two bytes shared by both processes: what is wanted, and whether the trainer is under way."""

    off, on, over = 0, 1, 2

    def __init__(self, path: Path, *, create: bool = False) -> None:
        """A new one is on, so that stages are entered, files opened and code warmed with events kept."""
        if create:
            path.write_bytes(bytes([self.on, 0]))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 2)

    def set(self, state: int) -> None:
        self._memory[0] = state

    def is_on(self) -> bool:
        return self._memory[0] == self.on

    def is_over(self) -> bool:
        return self._memory[0] == self.over

    def tell_ready(self) -> None:
        self._memory[1] = 1

    def is_ready(self) -> bool:
        return self._memory[1] == 1


class SwitchedProbe(Probe):
    """Emits while the switch is on. Off, it costs what a silent probe does, and a look at the switch."""

    __slots__ = ("_switch",)

    def __init__(
        self, switch: Switch, log: RowSink | None, stage: str, index: int = 0, device: str = "cpu"
    ) -> None:
        super().__init__(log, stage, index, device)
        self._switch = switch

    def bind(self, stage: str, index: int = 0, device: str = "cpu") -> SwitchedProbe:
        return SwitchedProbe(self._switch, self._log, stage, index, device)

    def _emit(self, kind: str, name: str, t_ns: int, dur_ns: int | None, fields: dict[str, object]) -> None:
        if self._switch.is_on():
            super()._emit(kind, name, t_ns, dur_ns, fields)


class SwitchedInstrument(Instrument):
    """Tells while the switch is on. Off, it is as one outside a recording, but that queues stay watched."""

    def __init__(self, switch: Switch, workload: dict[str, int]) -> None:
        super().__init__(workload)
        self._switch = switch

    @property
    def recorded(self) -> bool:
        return self._switch.is_on() and super().recorded

    def thread_probe(self) -> Probe | None:
        return super().thread_probe() if self._switch.is_on() else None

    def window_done(self, tokens: int, loss: float | None = None, **figures: float) -> None:
        if self._switch.is_on():
            super().window_done(tokens, loss, **figures)


class Progress:
    """When one worker's batches ended, and how much was done by then. Costs the same in both states."""

    def __init__(self, worker: int) -> None:
        self._worker, self._done, self._rows = worker, 0, array("q")

    def add(self, amount: int) -> None:
        """A batch has ended now."""
        self._done += amount
        self._rows.extend((self._worker, time.monotonic_ns(), self._done))

    def rows(self) -> array[int]:
        """Worker, time and amount, again and again."""
        return self._rows


def save_progress(folder: Path, workers: Iterable[Progress]) -> None:
    """All rows as int64 [ends, 3]."""
    import numpy as np

    rows = [np.frombuffer(worker.rows(), np.int64).reshape(-1, 3) for worker in workers]
    np.save(folder / "progress.npy", np.concatenate(rows))
