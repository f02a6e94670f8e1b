"""Faults that hold the GIL: a thread of pure Python beside the stages, packing in a Python loop."""

from __future__ import annotations

import threading
import time

from dflash.batch import HiddenStates
from dflash.contract.events import Probe
from dflash.faults.rig import Rig

turn_s = 0.2  # of the hog: its share of this it runs
rows_wait_s = 0.001  # for eight rows from the device, without the GIL, which drafters need as well
launches = 16  # of a forward or step beside it, at each of which the thread lets go of the GIL


def gil_hog(rig: Rig, busy: float) -> None:
    """A thread runs pure Python for that share of the time, giving the GIL up only when asked to."""

    def run(ended: threading.Event) -> None:
        words = 0
        while not ended.wait(turn_s * (1 - busy)):
            until_s = time.monotonic() + turn_s * busy
            while time.monotonic() < until_s:
                for _ in range(1000):
                    words = (words * 31 + 7) % 32768

    rig.launches = launches
    rig.beside.append(run)


def python_packing(rig: Rig, lost: float) -> None:
    """Targets gather the states of every batch value by value in a Python loop before they send it."""
    more_s = rig.pace.forward_loss_s(lost)

    def act(_index: int, item: HiddenStates, probe: Probe) -> None:
        batch = item.batch
        with probe.span("gather", batch=batch.id, window=batch.window.step, tokens=batch.tokens):
            until_s = time.monotonic() + more_s * batch.tokens
            while time.monotonic() < until_s:
                time.sleep(rows_wait_s)
                for row in item.taps[:8]:
                    [value + 0.0 for value in row.tolist()]

    rig.sending.append(act)
