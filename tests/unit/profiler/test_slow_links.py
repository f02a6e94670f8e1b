"""A slow link, far buffers, a slow GPU: told apart, with what each costs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dflash.contract.rundir import RunDir
from profiler.diagnosis import diagnose, rank
from profiler.finding import Diagnosis, Finding
from profiler.run import Run
from profiler.throughput import measure_throughput
from profiler.timeline import Timeline
from tests.played_pipeline import play

asymmetries = ("numa-remote-host-buffers", "straggling-link", "one-gpu-throttled")
quick = dict.fromkeys(range(3), 0.1)
# A download of one target takes three forwards; all others a tenth of one.
slow_download = {"preset": "pinned", "down_s": {**quick, 2: 3.0}, "up_s": {0: 0.05}}


def diagnosed(path: Path, nodes: list[int | None] | None = None, **settings: Any) -> Diagnosis:
    """Of a played run on GPUs that hang on these memory nodes (None: untold); None: on logical devices."""
    play(path, emulated=nodes is None, **settings)
    if nodes is not None:
        targets = settings.get("targets", 3)
        devices = [
            {"name": f"logical:{role}{index}", "role": role, "index": index, "uuid": f"GPU-{number}"}
            for number, (role, index) in enumerate([*[("target", i) for i in range(targets)], ("drafter", 0)])
        ]  # fmt: skip
        gpus = [{"uuid": f"GPU-{i}", "numa_node": node} for i, node in enumerate(nodes)]
        listed = {str(node): "0-3" for node in sorted({node or 0 for node in nodes})}
        RunDir(path).update(devices=devices, hardware={"gpus": gpus, "numa_nodes": listed})
    return diagnose(Timeline.of(Run.open(path)))


def finding_of(diagnosis: Diagnosis, cause: str) -> Finding:
    return next(finding for finding in diagnosis.findings if finding.cause == cause)


def named_alone(diagnosis: Diagnosis, cause: str) -> Finding:
    """The finding of the cause that is named first, the other asymmetries rejected."""
    assert diagnosis.primary is not None
    assert diagnosis.primary.cause == cause, diagnosis.headline
    for other in set(asymmetries) - {cause}:
        assert not finding_of(diagnosis, other).supported, other
    return diagnosis.primary


def rate_of(path: Path, **settings: Any) -> float:
    rate = measure_throughput(Timeline.of(Run.open(play(path, **settings)))).tokens_per_s
    assert rate is not None
    return rate


@pytest.mark.parametrize(
    ("settings", "cured", "slow"),
    [
        (slow_download, {"down_s": quick}, "logical:target2"),
        (
            {"preset": "pinned", "drafters": 2, "down_s": quick, "up_s": {0: 0.1, 1: 1.5}},
            {"up_s": {0: 0.1, 1: 0.1}},
            "logical:drafter1",
        ),
    ],
)
def test_copies_beside_the_stages_to_and_from_far_buffers_are_named(
    tmp_path: Path, settings: dict[str, Any], cured: dict[str, Any], slow: str
) -> None:
    finding = named_alone(diagnosed(tmp_path / "sick", **settings), "numa-remote-host-buffers")
    assert slow in finding.summary
    gained = rate_of(tmp_path / "healthy", **{**settings, **cured})
    lost = 1.0 - rate_of(tmp_path / "again", **settings) / gained
    assert lost > 0.2
    assert finding.measured_cost_share == pytest.approx(lost, abs=0.12)


def test_a_slow_pair_of_devices_is_a_link(tmp_path: Path) -> None:
    pairs = {(target, 0): 0.1 for target in range(3)}
    settings = {"preset": "peer", "peer_s": {**pairs, (1, 0): 3.0}}
    finding = named_alone(diagnosed(tmp_path / "run", **settings), "straggling-link")
    assert "logical:target1 to logical:drafter0" in finding.summary
    rates = {item.name: item.value for item in finding.evidence}
    assert rates["copies of logical:target1 to logical:drafter0"] == pytest.approx(0.02 / 3.0)
    assert rates["copies of logical:target0 to logical:drafter0"] == pytest.approx(0.2)
    assert finding.predicted_cost_s == pytest.approx(2.9)
    assert finding.remedy is not None
    assert finding.remedy.knobs == {"transport.preset": "auto"}
    healthy = diagnosed(tmp_path / "healthy", preset="peer", peer_s=pairs)
    assert healthy.primary is not None
    assert healthy.primary.cause == "target-bound-healthy"


def test_who_waits_for_the_drafter_that_waits_for_a_copy_comes_after_it(tmp_path: Path) -> None:
    pairs = {(target, drafter): 0.1 for target in range(3) for drafter in range(2)}
    diagnosis = diagnosed(tmp_path / "run", drafters=2, windows=24, peer_s={**pairs, (1, 0): 4.0})
    named = [finding for finding in diagnosis.findings if finding.supported]
    assert [finding.cause for finding in named] == ["straggling-link", "gradient-sync-wait"]
    link, waits = named
    cheaper = replace(link, measured_cost_share=0.5 * (waits.measured_cost_share or 0.0))
    assert rank([waits, cheaper])[0].cause == "straggling-link", "whatever it costs by itself"


@pytest.mark.parametrize(
    ("nodes", "cause"),
    [
        ([None, None, None, None], "straggling-link"),  # one memory node explains nothing
        ([1, 0, 1, 1], "straggling-link"),  # the slow one hangs where a fast one does
        ([0, 0, 1, 0], "numa-remote-host-buffers"),
    ],
)
def test_memory_nodes_tell_far_buffers_from_a_slow_link(
    tmp_path: Path, nodes: list[int | None], cause: str
) -> None:
    finding = named_alone(diagnosed(tmp_path / "run", nodes, **slow_download), cause)
    assert "logical:target2" in finding.summary


def test_a_slow_copy_that_nobody_waits_for_costs_nothing(tmp_path: Path) -> None:
    settings = {"preset": "pinned", "down_s": {**quick, 2: 0.6}, "up_s": {0: 0.05}}
    diagnosis = diagnosed(tmp_path / "run", **settings)
    finding = finding_of(diagnosis, "numa-remote-host-buffers")
    assert finding.verdict == "rejected"
    assert "it costs" in finding.summary
    rates = {item.name: item.value for item in finding.evidence}
    assert rates["copies of logical:target2"] == pytest.approx(0.02 / 0.6)
    assert diagnosis.primary is not None
    assert diagnosis.primary.cause == "target-bound-healthy"


def test_a_slow_device_copies_as_fast_as_its_siblings(tmp_path: Path) -> None:
    settings = {"preset": "pinned", "down_s": quick, "up_s": {0: 0.05}, "slower_targets": {1: 2.5}}
    diagnosis = diagnosed(tmp_path / "run", **settings)
    named_alone(diagnosis, "one-gpu-throttled")
    for cause in ("numa-remote-host-buffers", "straggling-link"):
        assert finding_of(diagnosis, cause).measured_cost_share == 0.0


def test_small_reads_say_nothing_of_links(tmp_path: Path) -> None:
    diagnosis = diagnosed(
        tmp_path / "run", preset="pinned", down_s={**quick, 2: 3.0}, up_s={0: 0.05}, item_bytes=4
    )
    for cause in ("numa-remote-host-buffers", "straggling-link"):
        assert finding_of(diagnosis, cause).verdict == "not_enough_evidence"
