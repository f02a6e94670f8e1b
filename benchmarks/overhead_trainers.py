"""The programs that `profiler_overhead.py` watches: a child process whose own events can be switched.

    python benchmarks/overhead_trainers.py KIND FOLDER [--logical] [--planted SHARE]
`dflash` is this project's trainer on FOLDER/config.toml. `loop` is four threads that launch tiny operations
as fast as the GIL lets them, beside sleepers: the worst case. FOLDER/switch says whether events are kept. The
end of every batch is noted in both states and written to FOLDER/progress.npy when all is over. The run
directory is in DFLASH_RUN_DIR, as in a recording.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import os
import queue
import sys
import threading
import time
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.overhead_switch import Progress, Switch, SwitchedInstrument, SwitchedProbe, save_progress
from dflash.contract.events import open_events
from dflash.contract.gil_range import publish_gil_range
from dflash.contract.instrument import Instrument
from dflash.contract.rundir import RunDir, environment_variable

if TYPE_CHECKING:
    from dflash.devices import Device

kinds = ("dflash", "loop")
stages = [("target", "q_pre", "forward")] * 2 + [("drafter", "q_hs", "backward")] * 2  # of the loop's workers
loop_threads = 40  # in all
tickers, tick_s = 4, 0.1  # of the sleepers some wake now and then
launches = 1000  # tiny operations in a batch of the loop: what a model of some thirty layers launches
counted_launches = 100  # after so many their number is noted: a batch is coarse for a slice of seconds
batch_tokens = 4096  # that a batch of the loop pretends to hold
window_batches = 4
planted_every_s, longest_hold_s = 0.002, 0.2  # of a planted cost


def train(folder: Path, switch: Switch) -> None:
    """Our trainer, until it is told that it is over."""
    import torch

    from dflash.contract.config import load_config
    from dflash.trainer import prepare

    run = RunDir(Path(os.environ[environment_variable]))
    publish_gil_range(run)
    log, _ = open_events(run.events / f"trainer-{os.getpid()}.arrow")
    config = load_config(folder / "config.toml").replacing({"devices.gpus": torch.cuda.device_count()})
    trainer = prepare(config, probe=SwitchedProbe(switch, log, "trainer"))
    describe(run, trainer.devices.describe())
    progress = Progress(0)
    trainer.window_done = lambda window, _figures: progress.add(window.tokens)

    def watch() -> None:
        if progress.rows():
            switch.tell_ready()
        if switch.is_over():
            trainer.state.request_stop("measured")

    trainer.run(watch)
    log.close()
    save_progress(folder, [progress])


class Batches:
    """A device and the tiny operations that a worker of the loop gives it."""

    def __init__(self, device: Device) -> None:
        import torch

        device.bind_thread()
        self._device = device
        self._numbers = torch.zeros(64, device=device.torch_device)

    def launch(self, progress: Progress) -> None:
        add = self._numbers.add_
        for _ in range(launches // counted_launches):
            for _ in range(counted_launches):
                add(1.0)
            progress.add(counted_launches)

    def wait(self) -> None:
        self._device.record().wait()


def loop(folder: Path, switch: Switch, logical: bool) -> None:
    """Workers that contend for the GIL all the time, and sleepers, until told that it is over."""
    import torch

    from dflash.cuda import CudaDevice
    from dflash.devices import DeviceSet, LogicalDevice

    torch.set_num_threads(1)
    threading.excepthook = _end_all
    device: Device = LogicalDevice(0) if logical else CudaDevice(0)
    instrument = SwitchedInstrument(switch, {"launches": launches})
    describe(RunDir(Path(os.environ[environment_variable])), DeviceSet((device,), (device,)).describe())
    progress = [Progress(worker) for worker in range(len(stages))]
    workers = [
        threading.Thread(
            target=work, args=(instrument, switch, device, worker, progress[worker]), name=f"worker-{worker}"
        )
        for worker in range(len(stages))
    ]
    with Sleepers(loop_threads - len(workers) - threading.active_count()):
        for thread in workers:
            thread.start()
        switch.tell_ready()
        for thread in workers:
            thread.join()
    instrument.close()
    save_progress(folder, progress)


def work(instrument: Instrument, switch: Switch, device: Device, worker: int, progress: Progress) -> None:
    """One worker: batches of tiny operations with the events of a stage.

    Its queue is its own, so that all workers contend at all times: blocked by one another they would be
    now two, now four, and their speed would say more of that than of the profiler.
    """
    stage_name, channel, kind = stages[worker]
    own = instrument.watch_queue(queue.Queue[int](2), f"{channel}.{worker}")
    with instrument.stage(stage_name, worker, device.name) as stage:
        batches = Batches(device)
        for number in itertools.count():
            if switch.is_over():
                return
            own.put(number)
            own.get()
            with stage.work(kind, tokens=batch_tokens):
                batches.launch(progress)
            with stage.wait("gpu_wait"):
                batches.wait()
            if kind == "backward" and number % window_batches == 0:
                instrument.window_done(window_batches * batch_tokens, loss=1.0)


class Sleepers:
    """Threads as every trainer has them: most sleep for ever, a few wake now and then."""

    def __init__(self, count: int) -> None:
        self._end = threading.Event()
        self._threads = [
            threading.Thread(
                target=self._tick if index < tickers else self._end.wait, name=f"sleeper-{index}"
            )
            for index in range(count)
        ]

    def _tick(self) -> None:
        while not self._end.wait(tick_s):
            pass

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join()


def plant(switch: Switch, share: float) -> None:
    """Keep the GIL for `share` of the time while the switch is on: a loss that has to be found.

    A thread that sleeps is often late to get the GIL back where others take it all the time; it then keeps
    it the longer, so that the share is what was asked for.
    """
    keeping = ctypes.PyDLL(None)  # unlike CDLL it does not release the GIL
    before_s, due_s = time.monotonic(), 0.0
    while not switch.is_over():
        before_s, passed_s = (now_s := time.monotonic()), now_s - before_s
        if switch.is_on():
            hold_s = min(due_s + share * passed_s, longest_hold_s)
            due_s += share * passed_s - hold_s
            keeping.usleep(round(hold_s * 1e6))
        time.sleep(planted_every_s)


def describe(run: RunDir, devices: list[dict[str, Any]]) -> None:
    """What only this process knows, for the result."""
    import torch

    versions = {
        "torch": torch.__version__,
        "transformers": metadata.version("transformers"),
        "cuda": torch.version.cuda,
    }
    run.update(versions={**run.manifest()["versions"], **versions}, devices=devices)


def _end_all(failure: threading.ExceptHookArgs) -> None:
    """A worker without its partner would wait for ever."""
    sys.__excepthook__(failure.exc_type, failure.exc_value or failure.exc_type(), failure.exc_traceback)
    sys.stderr.flush()
    os._exit(1)


def main() -> int:
    """Run one program until the switch says that it is over."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kind", choices=kinds)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--logical", action="store_true")
    parser.add_argument("--planted", type=float, default=0.0)
    arguments = parser.parse_args()
    switch = Switch(arguments.folder / "switch")
    if arguments.planted > 0:
        threading.Thread(target=plant, args=(switch, arguments.planted), name="planted", daemon=True).start()
    if arguments.kind == "loop":
        loop(arguments.folder, switch, arguments.logical)
    else:
        train(arguments.folder, switch)
    return 0


if __name__ == "__main__":
    sys.exit(main())
