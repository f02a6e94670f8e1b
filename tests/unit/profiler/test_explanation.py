from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from profiler import explanation, rules
from profiler.examination import examine
from profiler.explanation import mechanisms
from profiler.finding import Diagnosis
from profiler.rules.remedies import peer_transport
from profiler.run import Run
from profiler.timeline import Timeline
from tests.played_pipeline import play

played: dict[str, dict[str, Any]] = {
    "sync-d2h-on-critical-path": {"targets": 2, "preset": "host", "target_copy_s": 0.5},
    "h2d-on-drafter-critical-path": {
        "targets": 2, "drafters": 1, "preset": "host", "drafter_copy_s": 0.5, "backward_s": 0.4,
    },
    "drafter-too-slow": {"backward_s": 1.2},
    "prefetch-starvation": {"pack_s": 0.6},
    "target-bound-healthy": {},
}  # fmt: skip
said = """\
sync-d2h-on-critical-path: Each target spends 33 % of its time copying hidden states down to host \
memory on its own thread, and computes nothing meanwhile. The drafter waits 73 % of the time for the \
next batch from the targets. Without it the forecast is 50 % more tokens per second.
h2d-on-drafter-critical-path: The drafter spends 55 % of its time fetching batches up from host \
memory on its own thread, and trains nothing meanwhile. The targets wait 45 % of the time for room \
in the queue to the drafters.
drafter-too-slow: The drafter works 100 % of the time and still falls behind: the targets could \
deliver more than that, and work only 27 %. The targets wait 73 % of the time for room in the queue \
to the drafters.
prefetch-starvation: The host packs batches more slowly than the targets forward them: each target \
waits 45 % of its time for the next one. The drafter waits 66 % of the time for the next batch from \
the targets.
target-bound-healthy: The targets work 100 % of the time; nothing holds them up. The drafter waits \
38 % of it, being faster."""
sentences = dict(line.split(": ", 1) for line in said.splitlines())


def diagnosed(path: Path, **settings: Any) -> Diagnosis:
    return examine(play(path, **settings)).diagnosis


@pytest.mark.parametrize("cause", played)
def test_why_says_who_waits_for_whom_and_the_numbers_stand_apart(cause: str, tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path / "run", **played[cause])
    assert diagnosis.primary is not None
    assert diagnosis.primary.cause == cause
    assert diagnosis.why.startswith(sentences[cause])
    assert "; " in diagnosis.numbers
    assert not any(item.name in diagnosis.why for item in diagnosis.primary.evidence)


def test_every_cause_has_its_sentence() -> None:
    modules = [getattr(rules, rule.__module__.rpartition(".")[2]) for rule in rules.all_rules]
    assert {module.cause for module in modules} <= set(mechanisms)


@pytest.mark.parametrize(
    ("gain", "end"),
    [(0.5, "is 50 % more tokens per second."), (0.2, "since something else would then set the pace.")],
)
def test_a_gain_that_is_less_than_what_is_lost_says_why(gain: float, end: str, tmp_path: Path) -> None:
    # 33 % lost are 50 % more: a reader would take another figure for a contradiction.
    primary = diagnosed(tmp_path / "run", **played["sync-d2h-on-critical-path"]).primary
    assert primary is not None
    assert explanation._gain(dataclasses.replace(primary, predicted_gain=gain)).endswith(end)


@pytest.mark.parametrize(("link_gigabytes_per_s", "preset"), [(0.2, "peer"), (0.02, "auto")])
def test_peer_copies_are_not_advised_where_the_run_says_they_are_slower(
    link_gigabytes_per_s: float, preset: str, tmp_path: Path
) -> None:
    timeline = Timeline.of(Run.open(play(tmp_path / "run", preset="host")))
    assert timeline.config is not None
    config = timeline.config.replacing(
        {"devices.link_gigabytes_per_s": link_gigabytes_per_s, "devices.pinned_gigabytes_per_s": 0.1}
    )
    assert peer_transport(dataclasses.replace(timeline, config=config))["transport.preset"] == preset
    on_gpus = dataclasses.replace(timeline, config=config, emulated=False)
    assert peer_transport(on_gpus)["transport.preset"] == "peer"
