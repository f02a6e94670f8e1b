"""Stands in for a trainer that is about to be killed: `event_source.py RUN` emits events as fast as one does.

It takes the run over as the trainer would, starts a process of its own in a session of its own, and emits a
gauge every millisecond or so until somebody ends it. The file `emitted` holds when the last one was emitted
(int64, CLOCK_MONOTONIC in ns): shared memory, which the kernel keeps however this process ends.
"""

import mmap
import os
import sys
import time
from pathlib import Path

from dflash.contract.events import open_events
from dflash.contract.processes import identify
from dflash.contract.rundir import RunDir

run = RunDir(Path(sys.argv[1]))
if os.fork() == 0:  # before threads exist
    os.setsid()
    time.sleep(600)
    os._exit(0)
manifest = run.manifest()
run.update(
    config={},
    pids={**manifest["pids"], "trainer": os.getpid()},
    processes={**manifest["processes"], "trainer": identify(os.getpid())},
)
with (run.path / "emitted").open("wb+") as file:
    file.truncate(8)
    emitted_ns = memoryview(mmap.mmap(file.fileno(), 8)).cast("q")
log, probe = open_events(run.events / f"trainer-{os.getpid()}.arrow")
count = 0
while True:
    probe.gauge("depth", count, channel="q_pre")
    emitted_ns[0] = time.monotonic_ns()
    count += 1
    time.sleep(0.001)
