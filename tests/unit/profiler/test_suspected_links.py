"""What is suspected of a run's links, and what measuring them adds to the evidence."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dflash.contract.link_facts import LinkEdge, LinkFacts
from dflash.contract.rundir import RunDir, create_run
from profiler.diagnosis import diagnose
from profiler.finding import Diagnosis, Evidence
from profiler.run import Run
from profiler.run_place import why_not_here
from profiler.samplers.sensors import Answer, GpuDevice, GpuProcess, PowerSample, Unreadable
from profiler.suspected_links import Suspect, suspected_links, tell_measured, tell_unmeasured
from profiler.timeline import Timeline
from tests.played_pipeline import play


def examined(path: Path, **settings: Any) -> tuple[Diagnosis, dict[str, tuple[Suspect, ...]]]:
    timeline = Timeline.of(Run.open(play(path, **settings)))
    diagnosis = diagnose(timeline)
    return diagnosis, suspected_links(timeline, diagnosis.findings)


def facts_of(*edges: LinkEdge) -> LinkFacts:
    return LinkFacts(
        measured_utc="2026-01-01T00:00:00Z", emulated=False, torch="2.11", numa_nodes=(0, 1), iommu=False,
        numactl=True, devices=(), edges=edges,
    )  # fmt: skip


def added(before: Diagnosis, after: Diagnosis, cause: str) -> tuple[Evidence, ...]:
    old, new = (next(f for f in d.findings if f.cause == cause).evidence for d in (before, after))
    assert new[: len(old)] == old
    return new[len(old) :]


def test_copies_that_hold_a_stage_up_are_suspected_and_their_links_named(tmp_path: Path) -> None:
    diagnosis, suspects = examined(tmp_path / "run", targets=2, preset="host", target_copy_s=0.5)
    assert set(suspects) == {"sync-d2h-on-critical-path"}
    links = suspects["sync-d2h-on-critical-path"]
    assert {link.way for link in links} == {(f"logical:{i}", "host", "pageable") for i in (0, 1)}
    assert [link.gb_per_s for link in links] == pytest.approx([0.04, 0.04], rel=0.1)
    slow, fast = links
    facts = facts_of(
        LinkEdge(src=slow.src, dst="host", path="pageable", gb_per_s=12.0, wrong_words=0, buffer_node=1),
        LinkEdge(src=fast.src, dst="host", path="pageable", reason="not measured: 5 s were over"),
    )
    measured, missing = added(
        diagnosis, tell_measured(diagnosis, suspects, facts), "sync-d2h-on-critical-path"
    )
    assert measured.value == 12.0
    assert measured.name == f"{slow.src} to host (pageable) by itself, measured now"
    assert measured.text.startswith("12 GB/s, in the run 39.")
    assert measured.text.endswith("buffer on memory node 1")
    assert (missing.value, missing.reason) == (None, "not measured: 5 s were over")


def test_a_slow_pair_is_suspected_with_the_fastest_beside_it(tmp_path: Path) -> None:
    pairs = {(target, drafter): 0.1 for target in range(3) for drafter in range(2)}
    settings = {"preset": "peer", "drafters": 2, "peer_s": {**pairs, (1, 0): 4.0}}
    _, suspects = examined(tmp_path / "run", **settings)
    links = suspects["straggling-link"]
    assert len(links) == 4
    assert links[0].way == ("logical:target1", "logical:drafter0", "peer")
    assert links[-1].gb_per_s == max(link.gb_per_s for link in links)


def test_what_arrives_wrong_is_loud(tmp_path: Path) -> None:
    diagnosis, suspects = examined(tmp_path / "run", targets=2, preset="host", target_copy_s=0.5)
    link = suspects["sync-d2h-on-critical-path"][0]
    edge = LinkEdge(src=link.src, dst=link.dst, path=link.path, gb_per_s=9.0, words=100, wrong_words=3)
    first, _ = added(
        diagnosis, tell_measured(diagnosis, suspects, facts_of(edge)), "sync-d2h-on-critical-path"
    )
    assert "WRONG: 3 of 100 words" in first.text


def test_what_was_not_measured_says_why_and_a_healthy_run_suspects_nothing(tmp_path: Path) -> None:
    diagnosis, suspects = examined(tmp_path / "run", targets=2, preset="host", target_copy_s=0.5)
    [told] = added(
        diagnosis, tell_unmeasured(diagnosis, suspects, "the run is still going"), "sync-d2h-on-critical-path"
    )
    assert (told.value, told.text) == (None, "n/a: the run is still going")
    assert examined(tmp_path / "healthy")[1] == {}


class Driver:
    """A driver that shows these GPUs, with what they are utilised."""

    def __init__(self, *uuids: str, util: Answer = 0.0, reason: str | None = None) -> None:
        self._devices = tuple(GpuDevice(key=uuid, name="NVIDIA X1") for uuid in uuids)
        self._util, self._reason, self.closed = util, reason, False

    def open(self) -> str | None:
        return self._reason

    def devices(self) -> tuple[GpuDevice, ...]:
        return self._devices

    def read(self, index: int, metrics: Sequence[str]) -> list[Answer]:
        return [self._util for _ in metrics]

    def drain(self, index: int) -> list[PowerSample] | Unreadable:
        return []

    def processes(self, index: int) -> list[GpuProcess] | Unreadable:
        return []

    def system_memory(self) -> tuple[int, int] | None:
        return None

    def close(self) -> None:
        self.closed = True


def run_on(path: Path, *uuids: str | None, **manifest: Any) -> Run:
    create_run(path, command=[])
    devices = [
        {"name": f"cuda:{i}", "role": "target", "index": i, "model": "NVIDIA X1", "uuid": uuid}
        for i, uuid in enumerate(uuids)
    ]
    RunDir(path).update(**{"devices": devices, "emulated": False, "status": "finished", **manifest})
    return Run.open(path)


def test_the_same_gpus_when_free_may_be_measured(tmp_path: Path) -> None:
    driver = Driver("GPU-z", "GPU-b", "GPU-a")
    assert why_not_here(run_on(tmp_path / "run", "GPU-a", "GPU-b"), driver) is None
    assert driver.closed
    unread = Driver("GPU-a", util=Unreadable("not supported", permanent=True))
    assert why_not_here(run_on(tmp_path / "other", "GPU-a"), unread) is None


@pytest.mark.parametrize(
    ("uuids", "manifest", "driver", "reason"),
    [
        (("GPU-a",), {"emulated": True}, Driver("GPU-a"), "declared speeds"),
        (("GPU-a",), {}, Driver("GPU-b"), "not the run's machine: GPU-a is not here"),
        (("GPU-a",), {}, Driver(reason="no driver"), "not the run's machine: no driver"),
        (("GPU-a",), {}, Driver("GPU-a", util=63.0), "cuda:0 is busy (63 % utilised)"),
        ((None,), {}, Driver("GPU-a"), "does not say which GPUs"),
        ((), {}, Driver("GPU-a"), "does not say which GPUs"),
    ],
)
def test_elsewhere_or_busy_nothing_is_measured(
    tmp_path: Path, uuids: tuple[str | None, ...], manifest: dict[str, Any], driver: Driver, reason: str
) -> None:
    assert reason in (why_not_here(run_on(tmp_path / "run", *uuids, **manifest), driver) or "")


def test_a_run_that_is_still_going_is_left_alone(tmp_path: Path) -> None:
    run = create_run(tmp_path / "run", command=[])  # by this process, which is alive
    run.update(devices=[{"name": "cuda:0", "uuid": "GPU-a"}], emulated=False)
    assert why_not_here(Run.open(run.path), Driver("GPU-a")) == "the run is still going"
