"""Time in no span counts as held up where the other stage copies through host memory on the same GPU."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from profiler.held_by_copies import measure_held

second = 10**9


def spans_of(*rows: tuple[str, int, str, str, str, float, float]) -> pd.DataFrame:
    """Stage, index, device, kind, path, and from and to in seconds, on the host's clock."""
    names = ["stage", "index", "device", "kind", "path", "start_ns", "end_ns"]
    frame = pd.DataFrame(rows, columns=names).assign(clock="host")
    times: dict[str, Any] = {name: frame[name] * second for name in ("start_ns", "end_ns")}
    tids = frame.groupby(["stage", "index"]).ngroup()
    return frame.assign(tid=tids, **times)


def played(
    copy_path: str = "pageable", target_device: str = "cuda:0", drafter_device: str = "cuda:0"
) -> pd.DataFrame:
    """A target copies from 2 to 8 s of 10; its drafter waits until 3 s, works from 6 s on."""
    return spans_of(
        ("target", 0, target_device, "work", "n/a", 0, 2),
        ("target", 0, target_device, "copy", copy_path, 2, 8),
        ("target", 0, target_device, "work", "n/a", 8, 10),
        ("drafter", 0, drafter_device, "gpu_wait", "n/a", 0, 3),
        ("drafter", 0, drafter_device, "work", "n/a", 6, 10),
    )


def test_free_time_within_the_others_copies_is_held() -> None:
    assert measure_held(played(), 0, 10 * second) == {"target": 0.0, "drafter": pytest.approx(0.3)}


def test_only_the_range_counts() -> None:
    assert measure_held(played(), 5 * second, 7 * second)["drafter"] == pytest.approx(0.5)


def test_threads_of_a_stage_are_averaged() -> None:
    other = spans_of(("drafter", 1, "cuda:1", "work", "n/a", 0, 10)).assign(tid=9)
    both = pd.concat([played(), other], ignore_index=True)
    assert measure_held(both, 0, 10 * second)["drafter"] == pytest.approx(0.15)


@pytest.mark.parametrize(
    "spans",
    [
        played(copy_path="peer"),
        played(drafter_device="cuda:1"),
        played(target_device="logical:0", drafter_device="logical:0"),
    ],
)
def test_other_copies_and_devices_hold_nobody(spans: pd.DataFrame) -> None:
    assert measure_held(spans, 0, 10 * second) == {"target": 0.0, "drafter": 0.0}
