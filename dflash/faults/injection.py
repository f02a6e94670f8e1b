"""`--inject FAULT:STRENGTH`: reads the request, plants the fault, writes the truth where no profiler looks.

The truth goes to the file that DFLASH_FAULT_TRUTH names; without it, nowhere. Strength 0 is a healthy run at
the pace of an injected one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

from dflash.contract.config import TrainConfig
from dflash.contract.errors import UsageError, nearest
from dflash.contract.events import Probe, silent
from dflash.contract.rundir import write_json
from dflash.faults.catalogue import catalogue, healthy
from dflash.faults.fault import Fault
from dflash.faults.rig import Rig
from dflash.trainer import Trainer, prepare

truth_variable = "DFLASH_FAULT_TRUTH"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Injection:
    """One fault of some strength."""

    fault: Fault
    strength: float

    @classmethod
    def parse(cls, text: str) -> Self:
        """From FAULT:STRENGTH. Raises UsageError."""
        name, colon, number = text.partition(":")
        known = {healthy.name: healthy, **catalogue}
        if name not in known:
            near = nearest(name, known)
            raise UsageError(
                f"no fault is called {name!r}",
                where="--inject",
                expected=", ".join(known),
                remedy=f"did you mean {near}?" if near else None,
            )
        fault = known[name]
        try:
            strength = float(number) if colon else 0.0 if fault is healthy else float("nan")
        except ValueError:
            strength = float("nan")
        if not 0 <= strength < fault.below:
            raise UsageError(
                f"{name} cannot have this strength",
                where="--inject",
                found=number or "none",
                expected=f"{name}:STRENGTH with 0 ≤ STRENGTH < {fault.below:g}, the {fault.unit}",
            )
        return cls(fault, strength)

    def plant(self, trainer: Trainer) -> None:
        """Put the fault into a trainer that has not started. Raises DeviceError on GPUs."""
        rig = Rig(trainer)
        if self.strength > 0:
            self.fault.plant(rig, self.strength)
        trainer.run = partial(self._run, trainer.run)  # type: ignore[method-assign]

    def _run(self, run: Callable[..., T], *arguments: Any) -> T:
        from_ns = time.monotonic_ns()
        self._tell(from_ns, None)
        try:
            return run(*arguments)
        finally:
            self._tell(from_ns, time.monotonic_ns())

    def _tell(self, from_ns: int, to_ns: int | None) -> None:
        path = os.environ.get(truth_variable)
        if path:
            truth = {
                "fault": self.fault.name,
                "strength": self.strength,
                "unit": self.fault.unit,
                "cause": self.fault.cause if self.strength > 0 else healthy.cause,
                "from_ns": from_ns,  # CLOCK_MONOTONIC, as events; null: not ended
                "to_ns": to_ns,
            }
            write_json(Path(path), truth)


def prepare_injected(
    request: str, config: TrainConfig, *, run_path: Path | None = None, probe: Probe = silent
) -> Trainer:
    """What `dflash.trainer.prepare` gives, with the fault in it that `request` names. Raises UsageErrors."""
    injection = Injection.parse(request)
    trainer = prepare(config, run_path=run_path, probe=probe)
    injection.plant(trainer)
    return trainer
