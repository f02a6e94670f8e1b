"""`--trace`: a torch.profiler window of a real run, with every thread and our spans in it."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

from dflash.contract.config import load_config
from tests.small_training import on_logical_devices

small = (
    *on_logical_devices,
    "pipeline.token_budget=256",
    "pipeline.prefetch_depth=1",
    "run.max_steps=8",
)


def train(repository: Path, directory: Path, trace: str) -> subprocess.CompletedProcess[str]:
    config = directory / "small.toml"
    config.write_text(load_config(None, small).to_toml())
    command = [sys.executable, "-P", "-m", "dflash", "run", str(config), "--run-dir", str(directory / "run")]
    return subprocess.run(
        [*command, "--trace", trace],
        env={**os.environ, "PYTHONPATH": str(repository)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_window_holds_all_threads_and_only_its_steps(repository: Path, tmp_path: Path) -> None:
    done = train(repository, tmp_path, "2:4")
    assert done.returncode == 0, done.stderr
    path = tmp_path / "run" / "traces" / "steps-2-4.json.gz"
    assert f"trace of steps 2 to 4: {path}" in done.stderr
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    with gzip.open(path, "rt", encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}  # the last one wins
    assert {"prefetch-0", "target-0", "drafter-0"} <= set(names.values())
    ops = [e for e in events if e.get("cat") == "cpu_op"]
    spans = [e for e in events if e.get("cat") == "stage"]
    for stage, span in (("target-0", "forward"), ("drafter-0", "backward"), ("drafter-0", "optimizer")):
        assert any(names.get(op["tid"]) == stage for op in ops), stage
        assert any(names.get(e["tid"]) == stage and e["name"] == span for e in spans), span
    assert {e["args"]["window"] for e in spans if e["name"] == "optimizer"} == {2, 3, 4}
    # Spans and operators are on one clock: what the drafter's thread computes lies in its spans.
    tid = next(t for t, name in names.items() if name == "drafter-0")
    backward = [(e["ts"], e["ts"] + e["dur"]) for e in spans if e["name"] == "backward"]
    linear = [op["ts"] for op in ops if op["tid"] == tid and op["name"] == "aten::linear"]
    inside = sum(any(lo - 50 <= ts <= hi + 50 for lo, hi in backward) for ts in linear)
    assert len(linear) > 10
    assert inside == len(linear)


def test_what_is_no_window_is_refused(repository: Path, tmp_path: Path) -> None:
    done = train(repository, tmp_path, "x")  # one past the run's end: unit/dflash/test_steps.py
    assert done.returncode == 2
    assert "not a range" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run" / "traces").exists()
