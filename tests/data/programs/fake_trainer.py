"""Stands in for `python -m dflash`: `fake_trainer.py run CONFIG` leaves a run as the trainer would.

FAKE_TRAINER chooses how it ends: ok (default), short (of time), used_up (data), oom,
refused, segv, terminated, silent, hang, stall (after some windows), nan, xid, xid_stays (its
process does not end); hungry (out of memory from 2048 tokens on, with a thread, half a gigabyte and
a child process left behind).
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from dflash.contract.config import load_config
from dflash.contract.events import open_events
from dflash.contract.rundir import RunDir

window_tokens = 4000
kept = []


def main() -> int:
    run, config = RunDir(Path(os.environ["DFLASH_RUN_DIR"])), load_config(Path(sys.argv[2]))
    fate = os.environ.get("FAKE_TRAINER", "ok")
    if fate == "silent":
        print("the last words", file=sys.stderr)
        return 7
    run.update(config=config.values(), emulated=True)
    if fate == "oom":
        return fail(run, "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", 1)
    if fate == "hungry" and config.pipeline.token_budget >= 2048:
        leak(run)
        return fail(run, "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", 1)
    if fate == "refused":
        return fail(run, "there is no such data file\n  where: nowhere.jsonl", 2)
    if fate == "nan":
        return fail(run, "the loss or its gradient is not finite, training stops", 1)
    if fate in ("xid", "xid_stays"):
        code = fail(run, "RuntimeError: CUDA error: unspecified launch failure", 1)
        time.sleep(600 if fate == "xid_stays" else 0)
        return code
    if fate == "terminated":
        os.kill(os.getpid(), signal.SIGTERM)
    if fate == "segv":
        os.kill(os.getpid(), signal.SIGSEGV)
    if fate == "hang":
        (run.path / "hanging").touch()
        time.sleep(600)
    if fate == "stall":
        write_windows(run, config, 5)
        time.sleep(600)
    time.sleep(float(os.environ.get("FAKE_TRAINER_SECONDS", "0")))
    write_windows(run, config, 5 if fate in ("short", "used_up") else 30)
    if fate == "used_up":
        run.update(status="finished", reason=None)
        return 0
    (run.checkpoints / "step-30").mkdir(parents=True)
    run.update(status="stopped", reason=f"run.max_seconds = {config.run.max_seconds:g}")
    return 0


def write_windows(run: RunDir, config, count: int, slower: float = 1.0) -> None:
    window_s = slower * {"host": 0.4, "shared": 0.3, "pinned": 0.2, "peer": 0.1}[config.transport.preset]
    path = run.events / f"trainer-{os.getpid()}.arrow"
    log, probe = open_events(path.with_suffix(".part"))  # who watches sees all windows or none
    start_ns = time.monotonic_ns()
    for window in range(count):
        note = {
            "loss": 8 - 0.1 * window,
            "documents": 20,
            "supervised_tokens": 2000,
            "processed_tokens": 4000,
        }
        jitter = 1 + 0.02 * (window % 3)
        at_ns = start_ns + int((window + jitter) * window_s * 1e9)
        probe.mark("window", t_ns=at_ns, window=window, tokens=window_tokens, note=json.dumps(note))
    log.close()
    path.with_suffix(".part").rename(path)


def leak(run: RunDir) -> None:
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
    kept.append(bytearray(500_000_000))
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    (run.path / "leaked").write_text(str(child.pid))


def fail(run: RunDir, reason: str, code: int) -> int:
    run.update(status="failed", reason=reason)
    return code


if __name__ == "__main__":
    sys.exit(main())
