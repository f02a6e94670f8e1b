"""Parts of a run as figures, from runs of known content."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from autotune.run_figures import describe_memory, host
from dflash.contract.events import event_schema, sample_schema
from profiler.run import Run


def run_of(gauges: list[tuple[str, str, float]], samples: list[tuple[int, str, float]], plan: Any) -> Run:
    rows = [
        dict.fromkeys(event_schema.names)
        | {"t_ns": t, "kind": "gauge", "name": name, "device": place, "value": value, "stage": "trainer"}
        for t, (name, place, value) in enumerate(gauges)
    ]
    readings = [
        dict.fromkeys(sample_schema.names)
        | {"t_ns": t, "source": "host", "key": "tree", "metric": metric, "value": value}
        for t, metric, value in samples
    ]
    return Run(
        path=None,  # type: ignore[arg-type]
        manifest={"memory_plan": plan},
        config_values={},
        config=None,
        events=pd.DataFrame(rows, columns=event_schema.names),
        samples=pd.DataFrame(readings, columns=sample_schema.names),
    )


plan = {
    "process_bytes": 2e9,
    "places": [
        {"place": "cuda:0", "needed_bytes": 30e9, "allocated_bytes": 27e9, "free_bytes": 80e9},
        {"place": host, "needed_bytes": 5e9, "allocated_bytes": None, "free_bytes": 60e9},
    ],
}


def test_peak_plan_and_limit_of_a_gpu_speak_of_the_same_bytes() -> None:
    run = run_of(
        [
            ("allocated_bytes", "cuda:0", 20e9),
            ("peak_allocated_bytes", "cuda:0", 26e9),
            ("peak_reserved_bytes", "cuda:0", 29e9),
            ("allocated_bytes", "cuda:0", 24e9),
        ],
        [],
        plan,
    )
    memory = describe_memory(run)["cuda:0"]
    assert memory.peak_bytes == 26e9
    assert memory.planned_bytes == 27e9
    # What the plan adds for gaps and code cannot be had by tensors.
    assert memory.limit_bytes == 77e9


def test_a_run_without_peaks_tells_what_it_saw() -> None:
    run = run_of([("allocated_bytes", "cuda:1", 20e9)], [], None)
    memory = describe_memory(run)["cuda:1"]
    assert (memory.peak_bytes, memory.planned_bytes, memory.limit_bytes) == (20e9, None, None)


def test_the_hosts_peak_is_of_one_moment_and_counts_what_python_has() -> None:
    run = run_of(
        [],
        [
            (1, "rss_anon_bytes", 6e9), (1, "rss_shmem_bytes", 0.0),
            (2, "rss_anon_bytes", 4e9), (2, "rss_shmem_bytes", 3e9),
            (3, "rss_anon_bytes", 5e9), (3, "rss_file_bytes", 9e9),
        ],
        plan,
    )  # fmt: skip
    memory = describe_memory(run)[host]
    assert memory.peak_bytes == pytest.approx(7e9)
    assert memory.planned_bytes == 7e9
    assert memory.limit_bytes == 62e9


def test_what_was_not_seen_is_left_out() -> None:
    assert describe_memory(run_of([("depth", "cuda:0", 3.0)], [], plan)) == {}
