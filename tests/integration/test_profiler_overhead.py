"""The overhead benchmark from outside: it finds a loss that was planted, and says how it was measured."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_a_planted_loss_is_found(tmp_path: Path, repository: Path) -> None:
    options = "--logical --trainer-kind loop --planted 0.8 --pairs 2 --warmup 0 --settle 0.5 --steady 1"
    command = [sys.executable, "benchmarks/profiler_overhead.py", "--out", str(tmp_path), *options.split()]
    command += ["--seconds-per-slice", "1.5"]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "profiler_overhead.json").read_text(encoding="utf-8")
    document = json.loads(text)
    result = document["results"]["loop"]
    # Four fifths of the one thing that all its threads need: more than a crowd explains.
    assert result["lost"]["median"] > 0.3
    assert result["lost"]["count"] == len(result["slices"]) // 2 == 2
    assert result["lost"]["interval_95"][0] < result["lost"]["mean"] < result["lost"]["upper_95_one_sided"]
    assert result["events_per_s"] > 0
    assert result["sample_bytes_per_hour_by_sampler"]["host"] > 0
    assert {"sampler:host", "sampler:gil_wait", "log:host"} <= result["recorder_cores_by_thread"].keys()
    assert result["threads"] >= 40
    assert str(tmp_path) not in text  # a result names no path of its machine
    assert "| loop | 2 |" in done.stdout
