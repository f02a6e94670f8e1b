"""What being recorded costs a trainer that is all dispatch: the profiler on and off one running process.

    python benchmarks/profiler_overhead.py --out DIR [--pairs 14] [--seconds-per-slice 3] [--logical]
A trainer is started once; while it runs, the profiler goes off on on off off on … and neighbouring slices are
compared: batches completed a second, the time after each change left out. "On" is every sampler that
`dflash-profile record` starts, as threads of this process and into real logs, and the trainer's own events.
"Off" is neither. What the recorder itself uses is read from a longer stretch at the end. Two kinds of trainer
(overhead_trainers.py) on one GPU, or two where there are two. --logical takes CPU threads, which tests this
page and says nothing of GPUs. With --planted 0.05 a thread of the trainer keeps the GIL for up to 5 % of the
time while on: a loss that the comparison has to find. Wants an idle machine. Writes
DIR/profiler_overhead.json and prints a table; exit 1 when a trainer failed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.overhead_switch import Switch
from benchmarks.overhead_trainers import kinds
from benchmarks.paired_slices import Slice, compare, order_of, rate_in
from benchmarks.switched_profiler import Profiler, Stretch, bytes_per_hour, observe, rows_within
from benchmarks.table_cells import percent, table
from benchmarks.table_kinds import profiler_overhead
from dflash.contract.config import load_config
from dflash.contract.rundir import create_run, environment_variable, utc_now
from profiler.child import Child, Exit, log_tail
from profiler.machine import describe_hardware, own_versions
from profiler.recorder import RecordOptions, poll_s
from profiler.samplers.gpu import open_sensors

trainers = Path(__file__).with_name("overhead_trainers.py")
start_limit_s, end_limit_s = 300.0, 60.0
aims = {"lost_upper_95_one_sided": 0.005, "recorder_cores": 0.02, "sample_bytes_per_hour": 15e6}


class TrainerError(Exception):
    """The program under watch did not do its part."""


def write_training(folder: Path, *, logical: bool) -> None:
    """A configuration of tiny batches, and documents that are all cut to one length.

    The host's work per token is as large as it gets, also because nothing is compiled. Every batch has one
    shape, so that no kernel is planned in the middle.
    """
    data = folder / "data.jsonl"
    with data.open("w", encoding="utf-8") as lines:
        for document in range(128):
            answer = " ".join(f"word {document} follows {word}" for word in range(128))
            turns = [{"role": "user", "content": "Go on."}, {"role": "assistant", "content": answer}]
            lines.write(json.dumps({"id": str(document), "messages": turns}) + "\n")
    changes = [
        f"data.path={data}",
        "data.max_length=128",
        "target.model=random:tiny",
        "target.compile=off",
        "drafter.attention=sdpa",
        "split=1-1",
        "transport=peer",
        "pipeline.token_budget=256",
        "window.tokens=512",
        "drafter.block_size=8",
        "objective.anchors_per_document=4",
        "run.epochs=10000",
        "run.checkpoint_every=-1",
        f"devices.kind={'logical' if logical else 'cuda'}",
    ]
    (folder / "config.toml").write_text(load_config(None, changes).to_toml(), encoding="utf-8")


def measure(kind: str, folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Everything about one kind of trainer. Raises TrainerError."""
    folder.mkdir()
    command = [sys.executable, "-P", str(trainers), kind, str(folder), "--planted", str(arguments.planted)]
    command += ["--logical"] if arguments.logical else []
    write_training(folder, logical=arguments.logical)
    run, switch = create_run(folder / "run", command=command), Switch(folder / "switch", create=True)
    log = folder / "trainer.log"
    with log.open("wb") as output:
        env = {**os.environ, environment_variable: str(run.path.resolve())}
        child = Child(command, env=env, output=output)
        try:
            run.update(pids={"recorder": os.getpid(), "trainer": child.pid})  # so that it lets us look at it
            child.release()
            options = RecordOptions(gil_holders=arguments.py_spy)
            profiler = Profiler(run, child, switch, folder, options)
            return _measure_running(profiler, arguments)
        except TrainerError as error:
            raise TrainerError("\n".join([f"{kind}: {error}", *log_tail(log, lines=20)])) from None
        finally:
            child.close()


def _measure_running(profiler: Profiler, arguments: argparse.Namespace) -> dict[str, Any]:
    child = profiler.child
    wait_until_ready(child, profiler.switch)
    watch(child, arguments.warmup)
    slices = []
    for pair, on in order_of(arguments.pairs):
        profiler.turn(on)
        watch(child, arguments.settle)
        start_ns = time.monotonic_ns()
        watch(child, arguments.seconds_per_slice - arguments.settle)
        slices.append(Slice(pair, on, start_ns, time.monotonic_ns()))
    profiler.turn(True)
    watch(child, arguments.settle)
    steady = observe(lambda: watch(child, arguments.steady))
    threads = psutil.Process(child.pid).num_threads()
    profiler.turn(False)
    profiler.switch.set(Switch.over)
    end = child.wait(end_limit_s)
    if end is None or end.code != 0:
        raise TrainerError(f"did not end as it was told: {end}")
    return judge(profiler, slices, steady, threads)


def wait_until_ready(child: Child, switch: Switch) -> None:
    """Return once the trainer is under way."""
    limit_s = time.monotonic() + start_limit_s
    while not switch.is_ready():
        watch(child, poll_s)
        if time.monotonic() > limit_s:
            raise TrainerError(f"was not under way after {start_limit_s:g} s")


def watch(child: Child, seconds: float) -> None:
    """Pass the time as a recorder does. Raises TrainerError when the trainer ends meanwhile."""
    end_s = time.monotonic() + seconds
    while (left_s := end_s - time.monotonic()) > 0:
        end: Exit | None = child.wait(min(poll_s, left_s))
        if end is not None:
            raise TrainerError(f"ended too early, exit code {end.shell_code}")


def judge(profiler: Profiler, slices: list[Slice], steady: Stretch, threads: int) -> dict[str, Any]:
    """The result of one kind, from what lies in its folder."""
    progress = np.load(profiler.folder / "progress.npy")
    try:
        rates = [rate_in(progress, part) for part in slices]
    except ValueError as error:
        raise TrainerError(str(error)) from None
    logs = profiler.logs[-1]  # those of the steady stretch
    samples = {name: bytes_per_hour(logs / f"{name}.arrow", steady) for name in profiler.reports}
    (events,) = profiler.run.events.glob("*.arrow")
    manifest = profiler.run.manifest()
    return {
        **compare(slices, rates),
        "slices": [
            {"on": part.on, "seconds": round(part.seconds, 3), "per_s": rate}
            for part, rate in zip(slices, rates, strict=True)
        ],
        "steady_seconds": steady.seconds,
        "recorder_cores": steady.cpu_s / steady.seconds,
        "recorder_cores_by_thread": {n: s / steady.seconds for n, s in steady.cpu_by_thread_s.items()},
        "samplers": profiler.reports,
        "sample_bytes_per_hour": sum(samples.values()),
        "sample_bytes_per_hour_by_sampler": samples,
        "event_bytes_per_hour": bytes_per_hour(events, steady),
        "events_per_s": rows_within(events, steady).num_rows / steady.seconds,
        "threads": threads,
        "devices": manifest["devices"],
        "versions": manifest["versions"],
    }


def describe_machine() -> dict[str, Any]:
    """Hardware, and whether the machine was idle when this began."""
    sensors = open_sensors("nvml")
    assert sensors is not None
    reason = sensors.open()
    hardware = describe_hardware(sensors.devices() if reason is None else (), reason)
    sensors.close()
    names = [gpu["name"] for gpu in hardware["gpus"]]  # type: ignore[attr-defined]
    return {"gpus": names, "hardware": hardware, "load_before": os.getloadavg()}


def notes_on(results: dict[str, dict[str, Any]]) -> list[str]:
    """Where the recorder's CPU went, and the samplers that could not do their work."""
    notes = []
    for kind, result in results.items():
        shares = result["recorder_cores_by_thread"].items()
        told = ", ".join(f"{name} {percent(share, 2)}" for name, share in shares)
        notes.append(f"{kind}: of a core, {told}")
        notes += [
            f"{kind}: {name} {sampler['status']}: {sampler['reason']}"
            for name, sampler in result["samplers"].items()
            if sampler["status"] != "ok"
        ]
    return notes


def file_name(argument: str) -> str:
    """A result names no path of the machine it was made on."""
    return Path(argument).name


def read_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="a new or empty directory")
    parser.add_argument("--trainer-kind", nargs="+", choices=kinds, default=list(kinds))
    parser.add_argument("--pairs", type=int, default=14)
    parser.add_argument("--seconds-per-slice", type=float, default=3.0, help="the time to settle included")
    parser.add_argument("--settle", type=float, default=0.75, help="seconds left out after each change")
    parser.add_argument("--warmup", type=float, default=6.0, help="seconds before the first slice")
    parser.add_argument(
        "--steady",
        type=float,
        default=20.0,
        help="seconds at the end, on, for the recorder's own CPU and bytes",
    )
    parser.add_argument("--planted", type=float, default=0.0, help="share of the time, while on, 0 to 0.9")
    parser.add_argument("--py-spy", action="store_true", help="name holders of the GIL all the time as well")
    parser.add_argument("--logical", action="store_true", help="CPU threads instead of GPUs")
    arguments = parser.parse_args()
    if not 0 <= arguments.planted <= 0.9 or arguments.pairs < 1:
        parser.error("--planted takes 0 to 0.9, --pairs 1 or more")
    if arguments.seconds_per_slice <= arguments.settle:
        parser.error("a slice must be longer than --settle")
    return arguments


def main() -> int:
    """Measure each kind, write and print the result."""
    arguments = read_arguments()
    arguments.out.mkdir(parents=True, exist_ok=True)
    document: dict[str, Any] = {
        "benchmark": "profiler_overhead",
        "utc": utc_now(),
        "command": " ".join(["python", "benchmarks/profiler_overhead.py", *map(file_name, sys.argv[1:])]),
        "logical": arguments.logical,
        "planted_gil_share": arguments.planted,
        "py_spy": arguments.py_spy,
        "seconds": {
            "steady": arguments.steady,
            "slice": arguments.seconds_per_slice,
            "settle": arguments.settle,
            "warmup": arguments.warmup,
        },
        "aims": aims,
        "versions": own_versions(),
        **describe_machine(),
        "results": {},
    }
    failed = False
    for kind in arguments.trainer_kind:
        print(f"{kind} …", file=sys.stderr, flush=True)
        try:
            result = document["results"][kind] = measure(kind, arguments.out / kind, arguments)
            document["versions"] |= result.pop("versions")
        except TrainerError as error:
            failed = True
            print(error, file=sys.stderr, flush=True)
    document["load_after"] = os.getloadavg()
    text = json.dumps(document, indent=1, allow_nan=False) + "\n"
    (arguments.out / "profiler_overhead.json").write_text(text, encoding="utf-8")
    print(table(*profiler_overhead(document)), *notes_on(document["results"]), sep="\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
