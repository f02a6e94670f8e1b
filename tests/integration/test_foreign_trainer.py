"""A trainer that is not ours, recorded and diagnosed: with ten lines inside it, and without any."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from cli.dflash_profile import program
from profiler.run import Run
from profiler.samplers.host import HostSampler
from profiler.timeline import Timeline
from tests.until_sampled import until_sampled

# Work is sleep, several times longer than what a crowded machine adds to it. The sixth, a hog of the GIL, has
# tests of its own (test_gil_contention.py).
faults = {
    "none": ("target-bound-healthy", None),
    "slow-drafter": ("drafter-too-slow", "Move a device"),
    "starvation": ("prefetch-starvation", "Make packing cheaper"),
    "copy": ("sync-d2h-on-critical-path", "Take the copy off the target's thread"),
    "log-in-step": ("drafter-too-slow", "Take log off the drafters' thread"),
}


def profile(repository: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(repository)}
    return subprocess.run(
        [sys.executable, "-P", "-c", "from cli.start import profile; profile()", *arguments],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def record(repository: Path, folder: Path, *command: str) -> dict[str, Any]:
    """Record a command without GPU and GIL sampling; the document that says how it went."""
    done = profile(
        repository,
        folder,
        "record",
        "--gpu",
        "none",
        "--no-gil",
        "--json",
        "--run-dir",
        "run",
        "--",
        *command,
    )
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, dict[str, Any]]]:
    """Folder and document of a recording of each fault; three at once, as they mostly sleep."""
    repository, base = Path(__file__).parents[2], tmp_path_factory.mktemp("foreign")
    program = str(repository / "examples" / "threaded_trainer.py")

    def record_one(fault: str) -> tuple[Path, dict[str, Any]]:
        folder = base / fault
        folder.mkdir()
        # 22 windows, of which ten steady ones are left whatever is cut as warm-up.
        command = (sys.executable, program, "--fault", fault, "--batches", "176")
        return folder, record(repository, folder, *command)

    with ThreadPoolExecutor(3) as pool:
        return dict(zip(faults, pool.map(record_one, faults), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("fault", faults)
def test_the_planted_fault_is_named(recorded: dict[str, tuple[Path, dict[str, Any]]], fault: str) -> None:
    folder, document = recorded[fault]
    assert document["status"] == "finished"
    diagnosis = document["diagnosis"]
    named = [finding for finding in diagnosis["findings"] if finding["verdict"] == "supported"]
    cause, remedy = faults[fault]
    assert named[0]["cause"] == cause, diagnosis["headline"]
    assert remedy is None or remedy in diagnosis["next_step"]
    assert fault != "none" or not any(finding["is_sickness"] for finding in named)
    assert "--set" not in diagnosis["next_step"], "another trainer has none of our knobs"
    timeline = Timeline.of(Run.open(folder / "run"))
    assert timeline.windows["tokens"].unique().tolist() == [4096 * 8]
    assert timeline.depths.set_index("channel")["capacity"].to_dict() == {"q_pre": 8, "q_hs": 4}
    assert set(timeline.threads["stage"]) == {"prefetch", "target", "drafter"}
    assert "q_hs" in (folder / "run" / "report.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_two_runs_of_it_are_comparable(
    recorded: dict[str, tuple[Path, dict[str, Any]]], repository: Path, tmp_path: Path
) -> None:
    a, b = (str(recorded[fault][0] / "run") for fault in ("none", "slow-drafter"))
    done = profile(repository, tmp_path, "compare", a, b, "--fail-above", "10%", "--json")
    assert done.returncode == 3, done.stderr
    json.loads(done.stdout)


def test_the_example_runs_without_a_recording(tmp_path: Path, repository: Path) -> None:
    program = str(repository / "examples" / "threaded_trainer.py")
    done = subprocess.run(
        [sys.executable, "-P", program, "--batches", "20"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(repository)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "trained 20 batches\n")
    assert list(tmp_path.iterdir()) == []


def test_the_instrumentation_is_about_ten_lines(repository: Path) -> None:
    text = (repository / "examples" / "threaded_trainer.py").read_text(encoding="utf-8")
    lines = text.splitlines()
    assert len(lines) < 120
    assert "torch" not in text
    needed = [line for line in lines if line.endswith("# [probe]") and "fault" not in line]
    assert 8 <= len(needed) <= 13


def test_a_command_that_tells_nothing_is_told_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    code = until_sampled(monkeypatch, tmp_path / "enough", {HostSampler: 2})
    options = ("--gpu", "none", "--no-gil", "--json", "--run-dir", str(tmp_path / "run"))
    command = ["record", *options, "--", sys.executable, "-c", code]
    assert program.app(command, standalone_mode=False) == 0
    diagnosis = json.loads(capfd.readouterr().out)["diagnosis"]
    named = [finding for finding in diagnosis["findings"] if finding["verdict"] == "supported"]
    assert [finding["cause"] for finding in named] == ["not-enough-data"]
    assert "tells nothing of its stages, queues and steps" in diagnosis["headline"]
    assert "docs/probe-api.md" in diagnosis["next_step"]
    assert "dflash-profile import" in diagnosis["next_step"]
    evidence = {item["name"]: item for item in named[0]["evidence"]}
    assert evidence["CPU cores in use"]["value"] is not None
    assert evidence["resident memory at most"]["value"] > 1e6
    for name in ("work and waits of stages", "depths of queues", "ends of optimizer steps with their tokens"):
        assert evidence[f"missing: {name}"]["value"] is None
        assert "docs/probe-api.md" in evidence[f"missing: {name}"]["reason"]
    assert "missing: GPU utilisation and power" in evidence
    assert "missing: who holds the GIL and who waits for it" in evidence
    assert (tmp_path / "run" / "report.html").stat().st_size > 10_000
