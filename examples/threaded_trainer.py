"""A trainer that is not ours: plain threads, `queue.Queue`, work by sleeping. Ten lines make it diagnosable.

    dflash-profile record -- python examples/threaded_trainer.py --fault slow-drafter

Lines marked [probe] are the instrumentation; without a recording they do nothing.
"""

from __future__ import annotations

import argparse
import queue
import sys
import threading
import time

from dflash.contract.instrument import Instrument  # [probe]

batch_tokens = 4096
end = None  # passed down the queues when there is nothing more

faults = ("none", "slow-drafter", "starvation", "copy", "log-in-step", "gil-hog")
load_s, forward_s, step_s = 0.001, 0.010, 0.002
launches = 4  # of a forward: at each the thread lets go of the GIL and takes it again, as at kernels of a GPU


def main() -> None:
    """Run loader, targets and drafter to the end."""
    options = read_options()
    fault = options.fault
    instrument = Instrument(workload={"batch_tokens": batch_tokens})  # [probe]
    q_pre: queue.Queue[int | None] = queue.Queue(8)
    q_hs: queue.Queue[int | None] = queue.Queue(4)
    instrument.watch_queue(q_pre, "q_pre")  # [probe]
    instrument.watch_queue(q_hs, "q_hs")  # [probe]

    def load() -> None:
        with instrument.stage("prefetch") as stage:  # [probe]
            for batch in range(options.batches):
                with stage.work("pack", tokens=batch_tokens):  # [probe]
                    time.sleep(0.020 if fault == "starvation" else load_s)
                q_pre.put(batch)
            for _ in range(options.targets):
                q_pre.put(end)

    def run_target(index: int) -> None:
        with instrument.stage("target", index) as stage:  # [probe]
            while (batch := q_pre.get()) is not end:
                with stage.work("forward", tokens=batch_tokens):  # [probe]
                    for _ in range(launches):
                        time.sleep(forward_s / launches)
                if fault == "copy":
                    with stage.copy("pageable", 20_000_000):  # [probe]
                        time.sleep(0.010)
                q_hs.put(batch)
            q_hs.put(end)

    def run_drafter() -> None:
        ended = batches = 0
        with instrument.stage("drafter", 0) as stage:  # [probe]
            while ended < options.targets:
                if q_hs.get() is end:
                    ended += 1
                    continue
                with stage.work("backward", tokens=batch_tokens):  # [probe]
                    time.sleep(0.020 if fault == "slow-drafter" else step_s)
                batches += 1
                if batches % options.accumulate == 0:
                    if fault == "log-in-step":
                        with stage.work("log"):  # [probe]
                            time.sleep(0.080)
                    instrument.window_done(batch_tokens * options.accumulate, loss=1 / batches)  # [probe]

    trained = threading.Event()
    if fault == "gil-hog":
        threading.Thread(target=tokenise, args=(trained,), name="tokeniser").start()
    workers = [threading.Thread(target=load), threading.Thread(target=run_drafter)]
    workers += [threading.Thread(target=run_target, args=(index,)) for index in range(options.targets)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    trained.set()
    print(f"trained {options.batches} batches", file=sys.stderr)


def tokenise(trained: threading.Event) -> None:
    """Pure Python, which gives the GIL up only when somebody has waited 5 ms."""
    words = 0
    while not trained.is_set():
        words = (words + 1) % 32768


def read_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--fault", choices=faults, default="none", help="what to plant")
    parser.add_argument("--batches", type=int, default=400)
    parser.add_argument("--targets", type=int, default=2)
    parser.add_argument("--accumulate", type=int, default=8, help="batches of an optimizer step")
    return parser.parse_args()


if __name__ == "__main__":
    main()
