"""A search to be killed: `slow_search.py STUDY_DIR SECONDS [TRIALS]` tries 6 of 12, 2 repeats each.

SECONDS are those of a trial, or of several one after the other ("0.1,0.1,60"; the last holds for all that
follow). Every trial is a real child process in a session of its own, which only its environment ties to the
study, so that it outlives a killed search. Says a line at every start and end of a trial.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from autotune.effort import Effort
from autotune.machine import Machine
from autotune.runner import Request
from autotune.search import SearchPlan, search
from autotune.space import Dimension, SearchSpace
from autotune.telemetry import Telemetry
from dflash.contract.config import load_config
from dflash.contract.errors import DFlashError
from dflash.contract.rundir import environment_variable

sys.path.insert(0, str(Path(__file__).parents[3]))
from benchmarks.in_order import InOrder

speeds = {"host": 1000.0, "shared": 1100.0, "pinned": 1200.0, "peer": 1300.0}


class SlowRunner:
    def __init__(self, seconds: str) -> None:
        self.seconds = seconds.split(",")

    def run(self, request: Request) -> Telemetry:
        config = request.config
        environment = os.environ | {environment_variable: str(request.run_path)}
        seconds = self.seconds.pop(0) if len(self.seconds) > 1 else self.seconds[0]
        asked: list[int] = []  # to stop, before there is a process to be ended
        before = signal.signal(signal.SIGINT, lambda number, _: asked.append(number))
        with subprocess.Popen(["sleep", seconds], env=environment, start_new_session=True) as process:
            try:
                signal.signal(signal.SIGINT, before)
                if asked:
                    raise KeyboardInterrupt
                while process.poll() is None:  # no long wait: one that begins just after a signal outlasts it
                    time.sleep(0.01)
                assert process.returncode == 0
            finally:
                process.kill()
        rate = speeds[config.transport.preset] * (1 + config.transport.depth / 100)
        return Telemetry(
            tokens_per_s=rate, low=rate * 0.99, high=rate * 1.01, windows=20, steps=20, supervised_tokens=100,
            losses=(3.0,) * 20,
        )  # fmt: skip


def main() -> int:
    study_dir, seconds = Path(sys.argv[1]), sys.argv[2]
    dimensions = (Dimension("transport.preset", tuple(speeds)), Dimension("transport.depth", (1, 2, 4)))
    base = load_config(None, ["pipeline.split=1-2", "transport.preset=host", "transport.depth=2"])
    plan = SearchPlan(
        study_dir=study_dir,
        space=SearchSpace(dimensions, base, 3),
        machine=Machine(cpu="a cpu", cpus=2),
        effort=Effort(trials=int(sys.argv[3]) if len(sys.argv) > 3 else 6, repeats=2),
        searcher=InOrder(),  # whose runs are known beforehand
    )
    try:
        search(plan, SlowRunner(seconds), lambda event: print(event.kind, event.message, flush=True))
    except DFlashError as error:
        print(error.render(), file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
