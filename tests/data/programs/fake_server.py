"""Stands in for `python -m dflash serve --socket PATH`, and for `run CONFIG`: loads nothing, leaves runs.

The file that FAKE_FATE names says, at the start of a run, what becomes of it: ok, half (as fast), half-once
(then ok), oom, segv, refused, hang, slow (tells of windows and waits to be stopped, if pinned), fat (keeps
memory).
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

from fake_trainer import fail, main, write_windows

from dflash.contract.config import load_config
from dflash.contract.json_socket import JsonSocket, PeerGone
from dflash.contract.rundir import RunDir

used_bytes = {"cuda:0": 10e9}


def serve(path: str) -> int:
    import socket

    connected = socket.socket(socket.AF_UNIX)
    connected.connect(path)
    control = JsonSocket(connected)
    while True:
        try:
            order = control.receive()
        except PeerGone:
            return 0
        if "run" not in order:
            continue
        code = carry_out(control, RunDir(Path(order["run"])), load_config(Path(order["config"])), order)
        memory = {place: {"used_bytes": b, "limit_bytes": 100e9} for place, b in used_bytes.items()}
        control.send({"ended": code, "memory": memory})
        if code not in (0, 2):
            return code


def carry_out(control: JsonSocket, run: RunDir, config, order) -> int:
    fate = Path(os.environ["FAKE_FATE"]).read_text().strip()
    run.update(config=config.values(), emulated=True, notes={"worst_case": order["worst_case"]})
    if fate == "oom":
        return fail(run, "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", 1)
    if fate == "refused":
        return fail(run, "there is no such data file", 2)
    if fate == "segv":
        os.kill(os.getpid(), signal.SIGSEGV)
    if fate == "hang":
        (run.path / "hanging").touch()
        time.sleep(600)
    if fate == "fat":
        used_bytes["cuda:0"] += 3e9
    if fate == "slow" and config.transport.preset == "pinned":
        window_ns = 1_000_000_000
        control.send({"windows": [[window * window_ns, 100] for window in range(20)]})
        stop = control.receive(60.0)
        write_windows(run, config, 5)
        run.update(status="stopped", reason=stop["stop"])
        return 0
    write_windows(run, config, 30, slower=2.0 if fate in ("half", "half-once") else 1.0)
    if fate == "half-once":
        Path(os.environ["FAKE_FATE"]).write_text("ok")
    run.update(status="stopped", reason=f"run.max_seconds = {config.run.max_seconds:g}")
    return 0


if __name__ == "__main__":
    if sys.argv[1] == "run":
        sys.exit(main())
    assert sys.argv[1:3] == ["serve", "--socket"], json.dumps(sys.argv)
    sys.exit(serve(sys.argv[3]))
