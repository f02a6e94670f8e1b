"""`--trace`: a torch.profiler window of a real run, with every thread and our spans in it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
import torch

from dflash.__main__ import main
from dflash.contract.config import load_config
from tests.small_training import on_logical_devices

small = (
    *on_logical_devices,
    "pipeline.token_budget=256",
    "pipeline.prefetch_depth=1",
    "run.max_steps=8",
)


def train(directory: Path, trace: str, capfd: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """The trainer's exit code and what it said; in this process, which saves the imports of another."""
    config = directory / "small.toml"
    config.write_text(load_config(None, small).to_toml())
    threads = torch.get_num_threads()
    try:
        code = main(["run", str(config), "--run-dir", str(directory / "run"), "--trace", trace])
    finally:
        torch.set_num_threads(threads)
    return code, capfd.readouterr().err


def test_the_window_holds_all_threads_and_only_its_steps(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code, said = train(tmp_path, "2:4", capfd)
    assert code == 0, said
    path = tmp_path / "run" / "traces" / "steps-2-4.json.gz"
    assert f"trace of steps 2 to 4: {path}" in said
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


def test_what_is_no_window_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, said = train(tmp_path, "x", capfd)  # one past the run's end: unit/dflash/test_steps.py
    assert code == 2
    assert "not a range" in said
    assert "Traceback" not in said
    assert not (tmp_path / "run" / "traces").exists()
