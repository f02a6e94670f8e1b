"""What a call of the probe costs the thread that makes it: median microseconds, recorded and not recorded.

python benchmarks/probe_cost.py
"""

from __future__ import annotations

import json
import os
import queue
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from dflash.contract.instrument import Instrument
from dflash.contract.rundir import create_run, environment_variable

rounds, calls = 30, 1000


def cost_us(call: Callable[[], object]) -> float:
    """Median over rounds of the mean time of a call."""
    means = []
    for _ in range(rounds):
        start_ns = time.perf_counter_ns()
        for _ in range(calls):
            call()
        means.append((time.perf_counter_ns() - start_ns) / calls / 1000)
    return round(statistics.median(means), 2)


def costs(instrument: Instrument) -> dict[str, float]:
    """Microseconds of each call; of a watched queue what the watching adds to a put and a get together."""
    plain: queue.Queue[int] = queue.Queue()
    watched: queue.Queue[int] = instrument.watch_queue(queue.Queue(), "q_hs")

    def pass_through(channel: queue.Queue[int]) -> None:
        channel.put(1)
        channel.get()

    with instrument.stage("drafter") as stage:

        def work() -> None:
            with stage.work("backward", tokens=1):
                pass

        return {
            "stage.work": cost_us(work),
            "watched put and get": round(
                cost_us(lambda: pass_through(watched)) - cost_us(lambda: pass_through(plain)), 2
            ),
            "window_done": cost_us(lambda: instrument.window_done(1, loss=1.0)),
        }


def main() -> None:
    """Print both as JSON."""
    os.environ.pop(environment_variable, None)
    silent = costs(Instrument())
    with tempfile.TemporaryDirectory() as folder:
        os.environ[environment_variable] = str(create_run(Path(folder) / "run", command=[]).path)
        instrument = Instrument()
        recorded = costs(instrument)
        instrument.close()
    print(json.dumps({"recorded_us": recorded, "not_recorded_us": silent}, indent=1))


if __name__ == "__main__":
    main()
