"""The field stories and a healthy pipeline, live on logical devices, each diagnosed for what it is.

Copies are sleeps of declared length, much longer (or shorter) than the computing beside them, so that the
cause does not hang on the speed of the machine that runs the test. All are carried out in this process, which
saves the start of another, but for one, which is recorded. Windows are so many that ten steady ones are left
whatever is cut as warm-up.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.warm_trainer import WarmTrainer
from dflash.contract.config import TrainConfig, load_config
from dflash.contract.rundir import python_command
from profiler.diagnosis import diagnose
from profiler.finding import Diagnosis
from profiler.recorder import RecordOptions, record
from profiler.run import Run
from profiler.timeline import Timeline
from tests.injected_runs import train
from tests.undisturbed import try_undisturbed

pytestmark = pytest.mark.slow

small = {
    "objective.anchors_per_document": 4,
    "window.tokens": 512,
    "pipeline.token_budget": 256,
    "run.epochs": 100,
    "run.checkpoint_every": -1,
    "devices.kind": "logical",
    "devices.link_gigabytes_per_s": 50.0,
}
# A drafter that computes little beside what is copied.
light = {"drafter.layers": 1, "drafter.block_size": 4, "objective.anchors_per_document": 1}
stories = {
    # story 3: a deep queue in host memory, uploads on the drafter's own path
    "host-staging-queue-too-deep": {
        "pipeline.split": "3-1",
        "pipeline.token_budget": 512,
        "drafter.tap_count": 5,
        **light,
        "transport.preset": "host",
        "transport.depth": 20,
        "devices.pageable_gigabytes_per_s": 0.010,
        "run.max_steps": 44,
    },
    # story 1: one queue for all, tensors homed on the other drafter
    "shared-queue-cross-device": {
        "pipeline.split": "2-2",
        "transport.preset": "shared",
        "transport.depth": 4,
        "devices.link_gigabytes_per_s": 0.0015,
        "run.max_steps": 24,
    },
    # story 2: states copied to the host while the target stands still
    "sync-d2h-on-critical-path": {
        "pipeline.split": "1-1",
        "transport.preset": "host",
        "transport.depth": 2,
        "devices.pageable_gigabytes_per_s": 0.005,
        "run.max_steps": 21,
        **light,
    },
    # how it should be
    "target-bound-healthy": {
        "pipeline.split": "1-1",
        "transport.preset": "peer",
        "run.max_steps": 24,
        **light,
    },
}
forbidden = {
    "host-staging-queue-too-deep": {"target-bound-healthy", "shared-queue-cross-device"},
    "shared-queue-cross-device": {"drafter-too-slow", "target-bound-healthy"},
    "sync-d2h-on-critical-path": {"target-bound-healthy", "host-staging-queue-too-deep"},
    "target-bound-healthy": {
        "sync-d2h-on-critical-path",
        "host-staging-queue-too-deep",
        "shared-queue-cross-device",
        "prefetch-starvation",
    },
}


recorded = "sync-d2h-on-critical-path"


def configured(cause: str, *, seed: int, faster_links: float) -> TrainConfig:
    base = load_config(None).replacing({**small, **stories[cause]})
    links = ("link_gigabytes_per_s", "pinned_gigabytes_per_s", "pageable_gigabytes_per_s")
    changes = {f"devices.{link}": getattr(base.devices, link) * faster_links for link in links}
    return base.replacing({**changes, "data.seed": seed, "target.seed": seed})


def check(diagnosis: Diagnosis, cause: str) -> str | None:
    """What is wrong with it; None: nothing."""
    named = [finding.cause for finding in diagnosis.findings if finding.supported]
    if not diagnosis.emulated:
        pytest.fail("a run on logical devices is not said to be emulated")
    right = named[:1] == [cause] and not forbidden[cause] & set(named)
    return None if right else f"{named}: {diagnosis.headline}"


def test_a_recorded_story_is_told_by_its_cause(tmp_path: Path) -> None:
    path = tmp_path / "story.toml"
    path.write_text(configured(recorded, seed=0, faster_links=1.0).to_toml())
    options = RecordOptions(gil=False, log=tmp_path / "story.log", time_limit_s=240)

    def attempt(number: int) -> str | None:
        run = tmp_path / f"run-{number}"
        recording = record([*python_command(), "run", str(path)], run, options, start=WarmTrainer)
        if recording.status != "finished":
            pytest.fail((tmp_path / "story.log").read_text()[-2000:])
        return check(diagnose(Timeline.of(Run.open(run))), recorded)

    try_undisturbed(attempt)


@pytest.mark.parametrize("cause", [cause for cause in stories if cause != recorded])
def test_it_is_told_with_other_data_and_links(tmp_path: Path, cause: str) -> None:
    config = configured(cause, seed=7, faster_links=1.4)
    try_undisturbed(lambda number: check(diagnose(train(tmp_path / str(number), config)), cause))
