from __future__ import annotations

from pathlib import Path

import pytest

from profiler.run import Run
from profiler.timeline import Timeline
from reports.memory_rows import MemoryRow, compare_memory
from tests.played_pipeline import Play
from tests.run_builder import RunBuilder

devices = [{"name": "cuda:0", "role": "target", "index": 0, "uuid": "GPU-a"}]


def plan(place: str, needed: object, **more: object) -> dict[str, object]:
    return {"places": [{"place": place, "needed_bytes": needed, "lines": [], **more}]}


def rows_of(builder: RunBuilder, **manifest: object) -> tuple[MemoryRow, ...]:
    run = Run.open(builder.finish(**manifest))
    return compare_memory(run, Timeline.of(run))


def said(words: str) -> str:
    return words.replace("\u00a0", " ")


def test_what_was_seen_above_the_plan_is_not_accounted_for(tmp_path: Path) -> None:
    builder = RunBuilder(tmp_path / "run", Play().config)
    for at, used in enumerate((50e9, 90e9, 60e9)):
        builder.sample("gpu", "GPU-a", "own_mem_bytes", at, used)
        builder.sample("gpu", "GPU-a", "mem_used_bytes", at, 120e9)
    builder.sample("gpu", "GPU-b", "own_mem_bytes", 1, 130e9)
    lines = [{"name": "weights", "bytes": 54_000_000_000, "why": "2 bytes a weight"}]
    (row,) = rows_of(builder, devices=devices, memory_plan=plan("cuda:0", 80_000_000_000, lines=lines))
    assert (said(row.expected), said(row.seen)) == ("80.0 GB", "90.0 GB")
    assert said(row.difference) == "10.0 GB (12 %) not accounted for"
    assert "this run's processes" in row.what
    assert [tuple(map(said, line)) for line in row.lines] == [("weights", "54.0 GB", "2 bytes a weight")]


def test_a_driver_that_knows_no_processes_is_read_as_a_whole_and_torch_stands_beside(tmp_path: Path) -> None:
    builder = RunBuilder(tmp_path / "run", Play().config)
    builder.sample("gpu", "GPU-a", "own_mem_bytes", 0, None, "a pid namespace")
    builder.sample("gpu", "GPU-a", "mem_used_bytes", 0, 70e9)
    builder.gauge("target", 0, "allocated_bytes", 1.0, 40e9, device="cuda:0")
    memory_plan = plan("cuda:0", 80_000_000_000, allocated_bytes=50_000_000_000)
    whole, torch = rows_of(builder, devices=devices, memory_plan=memory_plan)
    assert "all processes" in whole.what
    assert said(whole.difference) == "10.0 GB (12 %) less than planned"
    assert (said(torch.expected), said(torch.seen)) == ("50.0 GB", "40.0 GB")


def test_host_memory_is_the_peak_of_the_run(tmp_path: Path) -> None:
    builder = RunBuilder(tmp_path / "run", Play().config)
    for at in range(4):
        builder.sample("host", "tree", "rss_anon_bytes", at, (1 + at) * 1e9)
        builder.sample("host", "tree", "rss_shmem_bytes", at, 1e9)
    (row,) = rows_of(builder, memory_plan=plan("host", 4_000_000_000))
    assert said(row.seen) == "5.00 GB"


def test_what_the_process_had_before_it_loaded_anything_is_expected_too(tmp_path: Path) -> None:
    builder = RunBuilder(tmp_path / "run", Play().config)
    for at in range(4):
        builder.sample("host", "tree", "rss_anon_bytes", at, 0.8e9)
        builder.sample("host", "tree", "rss_shmem_bytes", at, 0.1e9)
    document = {**plan("host", 500_000_000), "process_bytes": 300_000_000}
    (row,) = rows_of(builder, memory_plan=document)
    assert said(row.expected) == "800 MB"
    assert said(row.difference) == "100 MB (12 %) not accounted for"
    assert said(row.lines[-1][1]) == "300 MB"


def test_nothing_sampled_is_no_number(tmp_path: Path) -> None:
    (row,) = rows_of(RunBuilder(tmp_path / "run"), memory_plan=plan("cuda:0", 1))
    assert row.seen.startswith("n/a: ")
    assert row.difference == "n/a"


@pytest.mark.parametrize(
    "strange",
    [None, 3, [], {}, {"places": 3}, {"places": [3, {"place": 4}]}, {"places": {"a": 1}}],
)
def test_a_plan_of_another_form_is_none(tmp_path: Path, strange: object) -> None:
    assert rows_of(RunBuilder(tmp_path / "run"), memory_plan=strange) == ()


@pytest.mark.parametrize("size", ["much", True, -1, None])
def test_sizes_of_another_kind_are_unknown(tmp_path: Path, size: object) -> None:
    lines = [{"name": "x", "bytes": size}, 3]
    (row,) = rows_of(RunBuilder(tmp_path / "run"), memory_plan=plan("host", size, lines=lines))
    assert row.expected == "n/a: the plan does not say"
    assert row.lines == (("x", "n/a", ""),)
