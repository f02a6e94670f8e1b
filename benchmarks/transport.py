"""How near every path of a transport comes to the bare copy of the same bytes.

    python benchmarks/transport.py --out FILE.json [--mb 100 336] [--items 40]
Items of that many megabytes (336: 8192 tokens of the Qwen3-8B shape with 5 taps) go from a target to a
drafter that compute nothing. Each copy that a path makes is held against a bare copy over the same hop: one
`copy_` on a stream of its own, between buffers that exist; for `pageable` what `.to()` takes into fresh
memory. Bare copies are timed before and after. On one GPU both ends are on it, and `peer` copies within it.
`--tiny` runs on logical devices, whose declared speeds stand for the bare copy.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.result_file import summary, write_result
from dflash.batch import HiddenStates
from dflash.channel import ChannelClosed
from dflash.contract.arrowlog import Row
from dflash.contract.events import Probe, event_schema
from dflash.contract.sections import DevicesConfig, TransportChoice
from dflash.cuda import CudaDevice, open_stream
from dflash.devices import Device, DeviceSet, LogicalDevice
from dflash.transport import open_transport

paths = ("peer", "pinned", "pageable")
warm_items = 6  # of each run, that do not count
bare_copies = 12


class Way:
    """One target and one drafter on devices of their own, and what lies between them."""

    def __init__(self, *, tiny: bool) -> None:
        self.config = DevicesConfig(
            link_gigabytes_per_s=2.0,
            pinned_gigabytes_per_s=1.0,
            pageable_gigabytes_per_s=0.5,
            link_latency_us=0.0,
        )
        ends: list[Device]
        if tiny or not torch.cuda.is_available():
            ends = [LogicalDevice(0), LogicalDevice(1)]
        else:
            # Two objects for one GPU where there is but one: roles that share an object copy nothing.
            ends = [CudaDevice(0), CudaDevice(min(1, torch.cuda.device_count() - 1))]
        self.devices = DeviceSet((ends[0],), (ends[1],))

    @property
    def places(self) -> tuple[torch.device, torch.device]:
        return self.devices.targets[0].torch_device, self.devices.drafters[0].torch_device

    def carry(self, path: str, source: Tensor, items: int) -> tuple[list[Row], float]:
        """Send `source` that many times; the events, and GB/s from end to end after the warm-up."""
        rows: list[Row] = []
        choice = TransportChoice("per_drafter", path, "least_depth", depth=2)
        transport = open_transport(
            choice, self.devices, self.config, Probe(rows, "trainer"), item_bytes=source.nbytes
        )
        arrivals: list[float] = []
        failures: list[BaseException] = []

        def send() -> None:
            device = self.devices.targets[0]
            previous = None
            for number in range(items):
                batch: Any = SimpleNamespace(id=number, tokens=len(source), window=SimpleNamespace(step=0))
                item = HiddenStates(batch=batch, taps=source)
                moment = device.record()
                transport.send(item, 0, Probe(rows, "target", 0, device.name))
                if previous is not None:
                    previous.wait()
                previous = moment
            transport.close()

        def receive() -> None:
            device = self.devices.drafters[0]
            while True:
                try:
                    item = transport.recv(0, Probe(rows, "drafter", 0, device.name))
                except ChannelClosed:
                    return
                device.record().wait()
                arrivals.append(time.monotonic())
                transport.done(item)

        def guarded(device: Device, work: Callable[[], None]) -> None:
            try:
                device.bind_thread()
                work()
            except Exception as error:  # noqa: BLE001 - the thread boundary: told by the main thread
                failures.append(error)
                transport.abort(error)

        ends = ((self.devices.targets[0], send), (self.devices.drafters[0], receive))
        threads = [threading.Thread(target=guarded, args=end, daemon=True) for end in ends]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        transport.finish()
        if failures:
            raise failures[0]
        seconds = arrivals[-1] - arrivals[warm_items - 1]
        return rows, (items - warm_items) * source.nbytes / 1e9 / seconds


def hop_rates(rows: list[Row]) -> dict[str, list[float]]:
    """GB/s of the copies of each hop: `src > dst`, "host" for memory of the host."""
    found: dict[str, list[float]] = {}
    for values in rows:
        row = dict(zip(event_schema.names, values, strict=True))
        if row["kind"] == "span" and row["name"] == "copy" and row["batch"] >= warm_items:
            hop = f"{row['src']} > {row['dst']}"
            found.setdefault(hop, []).append(row["bytes"] / row["dur_ns"])
    return found


def bare_rates(way: Way, path: str, hop: str, like: Tensor) -> list[float]:
    """GB/s of bare copies over a hop."""
    if way.devices.emulated:
        return [way.config.declared_speeds[path]]
    ends = [None if end == "host" else end for end in hop.split(" > ")]
    source = _buffer(ends[0], path, like)
    if path == "pageable":
        return [_fresh_copy_rate(source, ends[1] or "cpu") for _ in range(bare_copies)]
    target = _buffer(ends[1], path, like)
    place = torch.device(ends[0] or ends[1] or "")
    stream = open_stream(place)
    found = []
    for _ in range(bare_copies):
        with torch.cuda.device(place), torch.cuda.stream(stream):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            start.record(stream)
            target.copy_(source, non_blocking=True)
            end.record(stream)
            end.synchronize()
        found.append(source.nbytes / 1e6 / start.elapsed_time(end))
    return found[2:]


def _buffer(end: str | None, path: str, like: Tensor) -> Tensor:
    if end is not None:
        return torch.zeros_like(like, device=end)
    return torch.zeros(like.shape, dtype=like.dtype, pin_memory=path == "pinned")


def _fresh_copy_rate(source: Tensor, end: str) -> float:
    torch.cuda.synchronize()
    start_s = time.monotonic()
    source.to(end, copy=True)
    torch.cuda.synchronize()
    return source.nbytes / 1e9 / (time.monotonic() - start_s)


def measure(way: Way, path: str, megabytes: float, items: int) -> list[dict[str, Any]]:
    """A row for each hop of a path."""
    columns = 1024
    rows = round(megabytes * 1e6 / 2 / columns)
    source = torch.zeros(rows, columns, dtype=torch.bfloat16, device=way.places[0])
    hops = sorted(hop_rates(way.carry(path, source, warm_items + 2)[0]))  # of a run that warms up
    before = {hop: bare_rates(way, path, hop, source) for hop in hops}
    events, end_to_end = way.carry(path, source, items)
    found = hop_rates(events)
    after = {hop: bare_rates(way, path, hop, source) for hop in hops}
    result = []
    for hop in hops:
        bare = statistics.median(before[hop] + after[hop])
        result.append(
            {
                "path": path,
                "hop": hop,
                "item_mb": round(source.nbytes / 1e6, 1),
                "gb_per_s": summary(found[hop]),
                "bare_gb_per_s": round(bare, 3),
                "share_of_bare": summary([rate / bare for rate in found[hop]], 4),
                "end_to_end_gb_per_s": round(end_to_end, 3),
            }
        )
    return result


def main() -> int:
    """Measure every path at every size, print a line each, write the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--mb", type=float, nargs="+", default=[100.0, 336.0])
    parser.add_argument("--items", type=int, default=40)
    parser.add_argument("--tiny", action="store_true")
    choice = parser.parse_args()
    way = Way(tiny=choice.tiny)
    way.devices.targets[0].bind_thread()
    rows = []
    for megabytes in [4.0] if choice.tiny else choice.mb:
        for path in paths:
            for row in measure(way, path, megabytes, choice.items):
                rows.append(row)
                print(
                    f"{row['path']:9} {row['hop']:20} {row['item_mb']:7.1f} MB "
                    f"{row['gb_per_s']['median']:8.2f} GB/s of {row['bare_gb_per_s']:8.2f} bare: "
                    f"{row['share_of_bare']['median']:.3f}; end to end {row['end_to_end_gb_per_s']:.2f}",
                    flush=True,
                )
    write_result(choice.out, "transport", {"emulated": way.devices.emulated, "rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
