"""A suspected link of a run on this machine's GPU is measured, in a process of its own and in time."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from cli.links_on_the_spot import measure_suspects
from dflash.contract.rundir import RunDir
from dflash.cuda import CudaDevice
from profiler.examination import examine
from profiler.run import Run
from profiler.run_place import why_not_here
from profiler.samplers.nvml import NvmlSensors
from tests.played_pipeline import play

pytestmark = pytest.mark.gpu


def test_a_copy_on_the_targets_path_is_held_against_its_link(tmp_path: Path) -> None:
    path = play(tmp_path / "run", targets=1, windows=20, preset="host", target_copy_s=0.5, emulated=False)
    uuid = CudaDevice(0).facts()["uuid"]
    RunDir(path).update(devices=[{"name": "logical:0", "role": "target", "index": 0, "uuid": uuid}])
    for _ in range(20):  # until what ran before no longer shows in the utilisation
        reason = why_not_here(Run.open(path), NvmlSensors())
        if reason is None or "busy" not in reason:
            break
        time.sleep(0.5)
    assert reason is None
    finding = measure_suspects(examine(path)).diagnosis.findings[0]
    assert finding.cause == "sync-d2h-on-critical-path"
    told = {item.name: item for item in finding.evidence}
    measured = told["logical:0 to host (pageable) by itself, measured now"]
    assert measured.reason is None
    assert measured.value is not None
    assert measured.value > 0.1
    assert "WRONG" not in measured.text
