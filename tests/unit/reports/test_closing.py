from __future__ import annotations

import pytest

from profiler.finding import ClosingPart, ClosingSum
from reports.closing import draw_threads, tabulate

parts = (
    ClosingPart("work", "forward", 6.0, 0.6),
    ClosingPart("wait", "get q_pre", 1.0, 0.1),
    ClosingPart("wait", "window_turn", 0.5, 0.05),
    ClosingPart("gpu_wait", "gpu_wait", 1.0, 0.1),
    ClosingPart("copy", "copy pageable", 1.0, 0.1),
    ClosingPart("unaccounted", "unaccounted", 0.5, 0.05),
)
target = ClosingSum("target", 0, "cuda:0", 7, 10.0, parts)


def test_parts_are_named_for_readers_and_ordered_work_copies_waits_rest() -> None:
    assert tabulate((target,))["kinds"] == [
        "forward",
        "waits for its own GPU",
        "copy pageable",
        "waits for input (q_pre)",
        "waits: window_turn",
        "not accounted for",
    ]


def test_rows_end_at_a_hundred_and_say_seconds() -> None:
    (row,) = tabulate((target,))["rows"]
    assert row["name"] == "target 0 · cuda:0"
    assert row["cells"][0] == "60\u00a0%, 6.00\u00a0s"
    assert row["total"] == "100\u00a0%, 10.0\u00a0s"


def test_what_does_not_add_up_shows() -> None:
    (row,) = tabulate((ClosingSum("target", 0, "cuda:0", 7, 10.0, parts[:1]),))["rows"]
    assert row["total"] == "60\u00a0%, 6.00\u00a0s"


def test_the_own_gpu_at_work_is_no_loss() -> None:
    traces = {trace["name"]: trace for trace in draw_threads((target,)).spec["data"]}
    assert traces["waits for its own GPU"]["marker"]["color"] == traces["forward"]["marker"]["color"]
    assert sum(trace["x"][0] for trace in traces.values()) == pytest.approx(100)


def test_waits_for_the_gil_are_a_loss_of_their_own() -> None:
    waiting = ClosingSum(
        "target", 0, "cuda:0", 7, 10.0, (*parts, ClosingPart("gil_wait", "gil_wait", 2.0, 0.2))
    )
    assert "waits for the GIL" in tabulate((waiting,))["kinds"]
    assert "waits for the GIL" in {trace["name"] for trace in draw_threads((waiting,)).spec["data"]}
