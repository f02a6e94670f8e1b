"""A command to practise recording on: two threads that contend for the GIL for a while.

`python -m profiler.practice SECONDS`, started by the recorder. Knows nothing of what is learnt from it.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

from dflash.contract.gil_range import publish_gil_range
from dflash.contract.rundir import RunDir, environment_variable


def practise(seconds: float) -> None:
    """Publish where the GIL is, then keep two threads busy."""
    publish_gil_range(RunDir(Path(os.environ[environment_variable])))
    end_s = time.monotonic() + seconds

    def spin() -> None:
        while time.monotonic() < end_s:
            sum(range(1000))

    threads = [threading.Thread(target=spin, name=f"practice-{i}") for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    practise(float(sys.argv[1]))
