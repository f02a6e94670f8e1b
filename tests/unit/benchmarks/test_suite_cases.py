"""Which runs the labelled suite makes."""

from __future__ import annotations

from collections import Counter

from benchmarks.suite_cases import Case, first_cases, remedy_of
from dflash.faults.catalogue import catalogue


def test_the_whole_matrix_is_named_once_each() -> None:
    cases = list(first_cases(list(catalogue), strengths=3, seeds=5, healthy_runs=20))
    assert Counter(case.kind for case in cases) == {"healthy": 20, "fault": len(catalogue) * 15}
    assert len({case.key for case in cases}) == len({case.name for case in cases}) == len(cases)


def test_healthy_runs_come_first_and_then_the_strongest_faults() -> None:
    cases = list(first_cases(["sync-copy"], strengths=2, seeds=2, healthy_runs=1))
    assert [(case.kind, case.strength, case.seed) for case in cases] == [
        ("healthy", 0.0, 0),
        ("fault", 0.6, 0),
        ("fault", 0.6, 1),
        ("fault", 0.3, 0),
        ("fault", 0.3, 1),
    ]


def test_a_remedy_is_tried_with_the_knobs_of_the_right_finding_only() -> None:
    row = {
        "kind": "fault",
        "fault": "sync-copy",
        "strength": 0.6,
        "seed": 2,
        "knobs": {"transport.preset": "host", "run.max_steps": 9},
        "truth": {"cause": "sync-d2h-on-critical-path"},
        "named": ["sync-d2h-on-critical-path", "gil-contention"],
        "remedy": {"transport.preset": "peer"},
    }
    wanted = Case("remedy", "sync-copy", 0.6, 2, {"transport.preset": "peer", "run.max_steps": 9})
    assert remedy_of(row) == wanted
    assert remedy_of({**row, "named": ["gil-contention", "sync-d2h-on-critical-path"]}) is None
    assert remedy_of({**row, "remedy": {}}) is None
    assert remedy_of({**row, "kind": "healthy"}) is None
