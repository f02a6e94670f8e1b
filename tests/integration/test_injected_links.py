"""Real runs with a slow link beside the stages: told from slow devices, and the other way round."""

from __future__ import annotations

from pathlib import Path

import pytest

from dflash.faults.catalogue import catalogue
from dflash.faults.fault import Fault
from dflash.faults.rig import Rig
from profiler.diagnosis import diagnose
from tests.injected_runs import carry_out
from tests.undisturbed import try_undisturbed

pytestmark = pytest.mark.slow

asymmetries = ("numa-remote-host-buffers", "straggling-link", "one-gpu-throttled")


def slow_pair(rig: Rig, lost: float) -> None:
    """Copies from target 0 to the drafter take that many of its forwards."""
    source = rig.trainer.devices.targets[0]
    rig.slow_links(
        lambda edge: edge.path == "peer" and edge.src is source,
        rig.pace.forward_s * rig.pace.straggling(lost),
    )


straggler = Fault(
    name="slow-pair", cause="straggling-link", does="copies of target 0 are slow", plant=slow_pair, below=0.5
)


@pytest.mark.parametrize(
    ("fault", "strength", "knobs"),
    [
        ("slow-pair", 0.3, {}),
        ("remote-buffers", 0.3, {"transport.preset": "pinned"}),
        ("slow-target", 0.4, {"transport.preset": "pinned"}),
    ],
)
def test_one_of_two_targets_held_up_is_told_by_what_holds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, strength: float, knobs: dict[str, object]
) -> None:
    monkeypatch.setitem(catalogue, straggler.name, straggler)

    def attempt(number: int) -> None:
        folder = tmp_path / str(number)
        folder.mkdir()
        timeline, truth = carry_out(folder, monkeypatch, fault, strength, knobs)
        diagnosis = diagnose(timeline)
        assert diagnosis.primary is not None
        assert diagnosis.primary.cause == truth["cause"], diagnosis.headline
        named = {finding.cause for finding in diagnosis.findings if finding.supported}
        assert named & set(asymmetries) == {truth["cause"]}

    try_undisturbed(attempt)
