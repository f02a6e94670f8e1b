"""Ten thousand batches of known bits through every transport, and not one of them may differ.

    python benchmarks/checksums.py [--out FILE.json] [--batches 10000] [--split 1-1] [--jobs 4]
Items of 64 kB to 4 MB in mixed order, each full of words that follow from its batch id, go through every
combination of path, queue and dispatch; the drafter's device compares every word with what it must be, on the
stream that received it and without waiting for it. Targets and drafters run as the trainer's stages do: one
batch ahead of their device, done when it has finished. On GPUs roles get devices of their own, several of
which may stand for one GPU so that all copies are made; with `--gpus` they share devices as a run's roles do.
`--logical` takes CPU threads, fast links and items of at most 4 kB. Exit 1 when a word differs, a batch is
missing, or one came twice. The file is written after each combination.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import random
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.result_file import write_result
from dflash.batch import HiddenStates
from dflash.channel import ChannelClosed
from dflash.contract.config import TrainConfig
from dflash.contract.events import silent
from dflash.contract.sections import DevicesConfig, PipelineConfig, TransportChoice
from dflash.contract.split import Split
from dflash.cuda import CudaDevice
from dflash.devices import Device, DeviceSet, open_devices
from dflash.transport import Transport, open_transport
from dflash.transport.dispatch import dispatches

columns = 64
smallest, largest = 64 << 10, 4 << 20  # bytes of an item on GPUs
smallest_logical, largest_logical = 256, 4 << 10
hang_s = 120.0  # no combination takes so long
multiplier = 2654435761


@dataclass(frozen=True, slots=True)
class Load:
    """What is sent: how many batches, and of which sizes."""

    batches: int
    smallest_bytes: int
    largest_bytes: int

    def rows(self, batch_id: int) -> int:
        """The length of a batch, evenly spread over the orders of magnitude; the same whenever asked."""
        ratio = self.largest_bytes / self.smallest_bytes
        size = self.smallest_bytes * ratio ** random.Random(batch_id).random()
        return max(1, round(size / columns / 4))

    def pattern(self, place: torch.device) -> Tensor:
        """Words by position, [most rows, columns] int32; a batch adds its tag to them."""
        rows = self.largest_bytes // columns // 4 + 1
        positions = torch.arange(rows * columns, dtype=torch.int64, device=place)
        return (positions * multiplier % (1 << 31)).to(torch.int32).view(rows, columns)


def tag_of(batch_id: int) -> int:
    """Different for every batch; additions wrap round."""
    return (batch_id + 1) * 40503 % (1 << 31)


@dataclass(slots=True)
class Passage:
    """One combination: who got what, and what was wrong with it."""

    devices: DeviceSet
    transport: Transport
    load: Load
    received: list[list[int]] = field(default_factory=list)  # batch ids by drafter
    wrong_words: list[Tensor] = field(default_factory=list)  # on the device of each drafter, [1]
    errors: list[BaseException] = field(default_factory=list)

    def send_all(self, target: int) -> None:
        """As `TargetForward`: one batch ahead of the device."""
        device = self.devices.targets[target]
        pattern = self.load.pattern(device.torch_device)
        previous = None
        for batch_id in range(target, self.load.batches, len(self.devices.targets)):
            rows = self.load.rows(batch_id)
            batch = SimpleNamespace(id=batch_id, tokens=rows, window=SimpleNamespace(step=0))
            item = HiddenStates(batch=batch, taps=pattern[:rows] + tag_of(batch_id))  # type: ignore[arg-type]
            moment = device.record()
            self.transport.send(item, target, silent)
            del item
            if previous is not None:
                previous.wait()
            previous = moment
        self.transport.close()

    def check_all(self, drafter: int) -> None:
        """As `DrafterStep`: an item is done when the device has compared it."""
        device = self.devices.drafters[drafter]
        pattern = self.load.pattern(device.torch_device)
        wrong = torch.zeros(1, dtype=torch.int64, device=device.torch_device)
        self.wrong_words.append(wrong)
        self.received.append(ids := [])
        previous: tuple[HiddenStates, Any] | None = None
        while True:
            try:
                item = self.transport.recv(drafter, silent)
            except ChannelClosed:
                break
            batch_id, rows = item.batch.id, item.taps.shape[0]
            ids.append(batch_id)
            if rows != self.load.rows(batch_id):
                raise ValueError(f"batch {batch_id} came with {rows} rows")
            wrong += (item.taps != pattern[:rows] + tag_of(batch_id)).sum()
            moment = device.record()
            self._finish(previous)
            previous = (item, moment)
        self._finish(previous)

    def _finish(self, flight: tuple[HiddenStates, Any] | None) -> None:
        if flight is not None:
            flight[1].wait()
            self.transport.done(flight[0])

    def start(self, device: Device, work: Any, index: int) -> threading.Thread:
        """A thread on its device; its failure ends all."""

        def run() -> None:
            try:
                device.bind_thread()
                work(index)
            except Exception as error:  # noqa: BLE001 - the thread boundary, as in a stage
                self.errors.append(error)
                self.transport.abort(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread


def carry(choice: TransportChoice, devices: DeviceSet, config: DevicesConfig, load: Load) -> dict[str, Any]:
    """Send everything through one combination; what came of it."""
    started = time.monotonic()
    passage = Passage(devices, open_transport(choice, devices, config, silent, ways=mixed(devices)), load)
    threads = [passage.start(d, passage.send_all, i) for i, d in enumerate(devices.targets)]
    threads += [passage.start(d, passage.check_all, i) for i, d in enumerate(devices.drafters)]
    deadline = started + hang_s
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    hangs = any(thread.is_alive() for thread in threads)
    if hangs:
        passage.transport.abort(TimeoutError(f"not done after {hang_s:g} s"))
    ids = sorted(batch_id for received in passage.received for batch_id in received)
    return {
        "transport": str(choice),
        "batches": len(ids),
        "missing": load.batches - len(set(ids)),
        "repeated": len(ids) - len(set(ids)),
        "wrong_words": None if hangs else sum(int(wrong) for wrong in passage.wrong_words),
        "megabytes": round(sum(load.rows(batch_id) for batch_id in ids) * columns * 4 / 1e6, 1),
        "by_drafter": sorted(len(received) for received in passage.received),
        "errors": [f"{type(error).__name__}: {error}" for error in passage.errors] + ["hangs"] * hangs,
        "seconds": round(time.monotonic() - started, 2),
    }


def is_right(row: dict[str, Any]) -> bool:
    """Every batch once, every word as it was."""
    return row["wrong_words"] == row["missing"] == row["repeated"] == 0 and not row["errors"]


def mixed(devices: DeviceSet) -> dict[tuple[str, str], str]:
    """For path `auto`: every other pair straight, the others through the host."""
    pairs = itertools.product(devices.targets, devices.drafters)
    return {(t.name, d.name): ("peer", "pinned")[number % 2] for number, (t, d) in enumerate(pairs)}


def combinations(split: Split) -> list[TransportChoice]:
    """Queue × path × dispatch; `local` only where each target has a drafter, with a queue of its own."""
    every = itertools.product(("pageable", "pinned", "peer", "auto"), ("shared", "per_drafter"), dispatches)
    even = split.targets % split.drafters == 0
    return [
        TransportChoice(queue, path, dispatch, depth=2)
        for path, queue, dispatch in every
        if dispatch != "local" or (queue == "per_drafter" and even)
    ]


def open_places(split: str, config: DevicesConfig) -> DeviceSet:
    """Shared devices where `config.gpus` says so, else one for each role, GPUs taken in turn."""
    if config.gpus or config.kind == "logical":
        return open_devices(TrainConfig(devices=config, pipeline=PipelineConfig(split=split)))
    roles, gpus = Split.parse(split), torch.cuda.device_count()
    devices = tuple(CudaDevice(role % gpus) for role in range(roles.targets + roles.drafters))
    return DeviceSet(devices[: roles.targets], devices[roles.targets :])


def carry_choice(arguments: argparse.Namespace, choice: TransportChoice) -> dict[str, Any]:
    """One combination in a process that may be its own."""
    config = DevicesConfig(
        kind="logical" if arguments.logical else "cuda",
        gpus=arguments.gpus,
        link_gigabytes_per_s=50,
        pinned_gigabytes_per_s=50,
        pageable_gigabytes_per_s=50,
        link_latency_us=0,
    )
    sizes = (smallest_logical, largest_logical) if arguments.logical else (smallest, largest)
    return carry(choice, open_places(arguments.split, config), config, Load(arguments.batches, *sizes))


def print_row(row: dict[str, Any]) -> None:
    """One line."""
    print(
        f"{'right' if is_right(row) else 'WRONG'}  {row['batches']:6} batches {row['megabytes']:8.0f} MB "
        f"{row['seconds']:6.1f} s  {row['transport']}  {'; '.join(row['errors'])}",
        flush=True,
    )


def parse_arguments() -> argparse.Namespace:
    """See the module's text."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--out", type=Path, help="where the result is written as JSON")
    parser.add_argument("--batches", type=int, default=10_000, help="through each combination")
    parser.add_argument("--split", default="1-1", help="targets and drafters, 2-2 say")
    parser.add_argument("--gpus", type=int, default=0, help="devices that the roles share; 0: none")
    parser.add_argument("--logical", action="store_true", help="CPU threads instead of GPUs")
    parser.add_argument("--jobs", type=int, default=1, help="combinations at once, each in its own process")
    return parser.parse_args()


def main() -> int:
    """Carry everything through every combination, print a table, write the result file."""
    arguments = parse_arguments()
    spawn, rows = multiprocessing.get_context("spawn"), list[dict[str, Any]]()
    choices = combinations(Split.parse(arguments.split))
    with ProcessPoolExecutor(arguments.jobs, mp_context=spawn) as pool:
        for row in pool.map(carry_choice, itertools.repeat(arguments), choices):
            rows.append(row)
            print_row(row)
            write_result(arguments.out, "checksums", summarise(rows, len(choices), arguments))
    verdict = summarise(rows, len(choices), arguments)
    words = sum(row["wrong_words"] or 0 for row in rows)
    print(
        f"{'right' if verdict['right'] else 'WRONG'}: {verdict['batches']} batches through {len(rows)} "
        f"transports, {words} words wrong"
    )
    return 0 if verdict["right"] else 1


def summarise(rows: list[dict[str, Any]], wanted: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """What is written, after every row. Right is the whole only when no transport is left out."""
    return {
        "split": arguments.split,
        "gpus_shared": arguments.gpus,
        "logical": arguments.logical,
        "right": len(rows) == wanted and all(is_right(row) for row in rows),
        "transports_left_out": wanted - len(rows),
        "batches": sum(row["batches"] for row in rows),
        "transports": rows,
    }


if __name__ == "__main__":
    sys.exit(main())
