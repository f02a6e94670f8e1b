"""How much of the time both sides are at work."""

from __future__ import annotations

import pandas as pd
import pytest

from profiler.turns import work_together

second = 10**9


def spans_of(*rows: tuple[str, str, str, float, float]) -> pd.DataFrame:
    """Stage, kind, clock, from and to in seconds."""
    frame = pd.DataFrame(rows, columns=["stage", "kind", "clock", "start_ns", "end_ns"])
    return frame.assign(start_ns=frame["start_ns"] * second, end_ns=frame["end_ns"] * second)


forward = ("target", "work", "host", 0.0, 4.0)


@pytest.mark.parametrize(
    ("drafter", "together"),
    [
        (("drafter", "work", "host", 4.0, 6.0), 0.0),
        (("drafter", "work", "host", 3.0, 5.0), 0.5),
        (("drafter", "copy", "host", 1.0, 3.0), 1.0),
        (("drafter", "wait", "host", 0.0, 4.0), None),
        (("drafter", "work", "host", 11.0, 12.0), None),  # past the range
    ],
)
def test_the_part_of_the_shorter_sides_work(
    drafter: tuple[str, str, str, float, float], together: float | None
) -> None:
    assert work_together(spans_of(forward, drafter), 0, 10 * second) == together


def test_threads_of_a_side_count_as_one() -> None:
    other = ("target", "work", "host", 2.0, 6.0)
    late = ("drafter", "work", "host", 5.0, 7.0)
    assert work_together(spans_of(forward, other, late), 0, 10 * second) == 0.5


def test_the_gpus_clock_comes_before_the_hosts() -> None:
    """Launches end long before the work."""
    launches = ("target", "work", "host", 0.0, 1.0)
    on_gpu = ("target", "work", "gpu", 0.0, 4.0)
    copied = ("target", "copy", "host", 4.0, 5.0)
    step = ("drafter", "work", "host", 3.0, 7.0)
    assert work_together(spans_of(launches, on_gpu, copied, step), 0, 10 * second) == 0.5
