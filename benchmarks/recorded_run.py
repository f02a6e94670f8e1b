"""A training run in this process, recorded as one that was started by itself: for pages of many short runs.

No samplers run beside it. Knows nothing of why it runs.
"""

from __future__ import annotations

import sys
import tarfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash.contract.arrowlog import ArrowLog, compact_log
from dflash.contract.config import TrainConfig
from dflash.contract.events import Probe, event_schema
from dflash.contract.rundir import RunDir, create_run
from dflash.session import Session
from dflash.trainer import Trainer
from profiler.throughput import Throughput


@dataclass(frozen=True, slots=True)
class Took:
    """Seconds."""

    ready_s: float
    run_s: float


def record_here(
    path: Path,
    config: TrainConfig,
    prepare: Callable[..., Trainer],
    *,
    cores: int,
    ready: Callable[[RunDir, Trainer], None] = lambda run, trainer: None,
) -> Took:
    """Train in a new run directory.

    `prepare`: as `dflash.trainer.prepare`. `cores`: to be told as the machine's. `ready` is called with a
    trainer that has not started.
    """
    began_s = time.monotonic()
    run = create_run(path, command=sys.argv)
    log = ArrowLog(run.events / "trainer.arrow", event_schema)
    session = Session(run, config)
    try:
        session.write_start()
        trainer = prepare(config, run_path=path, probe=Probe(log, "trainer"))
        session.announce(trainer)
        run.update(hardware={"usable_cores": cores})
        ready(run, trainer)
        ready_s = time.monotonic()
        trainer.run()
        run.update(status="finished")
    finally:
        log.close()
    compact_log(log.path)
    return Took(ready_s - began_s, time.monotonic() - ready_s)


def rates(measured: Throughput) -> dict[str, Any]:
    """What a row tells of a throughput."""
    return {
        "measured": measured.tokens_per_s,
        "measured_low": measured.low,
        "measured_high": measured.high,
        "windows": measured.windows_used,
        "reason": measured.reason,
    }


def pack(runs: Path, archive: Path) -> None:
    """All run directories in `runs` as one file, written whole or not at all."""
    part = archive.with_suffix(".part")
    with tarfile.open(part, "w:xz", preset=1) as file:
        file.add(runs, runs.name)
    part.replace(archive)
