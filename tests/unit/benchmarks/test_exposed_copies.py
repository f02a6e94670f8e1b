"""What counts as an exposed copy."""

from __future__ import annotations

from benchmarks.exposed_copies import exposed_copy_ns
from dflash.contract.arrowlog import Row
from dflash.contract.events import Probe


def spans(*given: tuple[str, str, str, int, int, dict[str, object]]) -> list[Row]:
    """(stage, device, name, start, end, fields) as rows."""
    rows: list[Row] = []
    for stage, device, name, start_ns, end_ns, fields in given:
        Probe(rows, stage, 0, device).emit_span(name, start_ns, end_ns, **fields)
    return rows


def test_a_copy_on_a_stage_counts_whole() -> None:
    rows = spans(("target", "cuda:0", "copy", 100, 160, {"src": "cuda:0", "dst": "host"}))
    assert exposed_copy_ns(rows, 0, 1000) == 60


def test_a_copy_beside_work_counts_nothing() -> None:
    rows = spans(
        ("link", "cuda:0", "copy", 100, 160, {"src": "cuda:0", "dst": "cuda:1"}),
        ("drafter", "cuda:1", "backward", 100, 300, {}),
    )
    assert exposed_copy_ns(rows, 0, 1000) == 0


def test_of_a_wait_only_the_time_of_a_copy_to_that_device_counts() -> None:
    rows = spans(
        ("link", "cuda:0", "copy", 100, 160, {"src": "cuda:0", "dst": "cuda:1"}),
        ("link", "cuda:2", "copy", 160, 400, {"src": "cuda:2", "dst": "cuda:3"}),
        ("drafter", "cuda:1", "copy_wait", 20, 150, {"clock": "gpu"}),
        ("drafter", "cuda:1", "copy_wait", 170, 190, {"clock": "gpu"}),
    )
    assert exposed_copy_ns(rows, 0, 1000) == 50


def test_what_lies_outside_of_the_range_does_not_count() -> None:
    rows = spans(
        ("target", "cuda:0", "copy", 0, 100, {"src": "cuda:0", "dst": "host"}),
        ("target", "cuda:0", "copy", 190, 300, {"src": "cuda:0", "dst": "host"}),
        ("link", "cuda:0", "copy", 300, 400, {"src": "cuda:0", "dst": "cuda:1"}),
        ("drafter", "cuda:1", "copy_wait", 300, 400, {}),
    )
    assert exposed_copy_ns(rows, 100, 200) == 10
