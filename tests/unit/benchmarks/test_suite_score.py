"""Runs are right by the first cause named, count by what they lost, and remedies by what came back."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.suite_score import score

health = "target-bound-healthy"


def row(kind: str, named: list[str], tokens_per_s: float | None, **fields: Any) -> dict[str, Any]:
    cause = fields.pop("cause", health if kind == "healthy" else "prefetch-starvation")
    return {
        "kind": kind,
        "fault": "none" if kind == "healthy" else "slow-data",
        "strength": 0.0 if kind == "healthy" else 0.3,
        "seed": 0,
        "knobs": {"pipeline.split": "2-1", "transport.preset": "peer"},
        "named": named,
        "truth": {"cause": cause},
        "tokens_per_s": tokens_per_s,
        "headline": "headline",
        "said_of_truth": "said",
        **fields,
    }


def test_only_faults_that_cost_a_tenth_are_judged() -> None:
    rows = [
        row("healthy", [health], 100.0),
        row("fault", ["prefetch-starvation", health], 60.0),
        row("fault", ["gil-contention"], 89.0),
        row("fault", ["gil-contention"], 95.0),
        row("fault", [], None),
    ]
    figures = score(rows)
    assert (figures["accuracy"]["runs"], figures["accuracy"]["right"]) == (2, 1)
    assert figures["accuracy"]["faulty_runs_in_all"] == 4
    assert [miss["named"] for miss in figures["misses"]] == [["gil-contention"]]
    assert figures["confusion"][1]["named_first"] == {
        "gil-contention": 2,
        "prefetch-starvation": 1,
        "nothing": 1,
    }


def test_a_healthy_run_is_accused_when_any_cause_is_named() -> None:
    accused = row("healthy", [health, "gil-contention"], 100.0, seed=1)
    figures = score([row("healthy", [health], 100.0), row("healthy", [], 100.0), accused])
    assert figures["healthy"] == {"runs": 3, "accused": 1}
    assert [miss["seed"] for miss in figures["misses"]] == [1]


def test_a_remedy_regains_a_share_of_the_loss() -> None:
    better = {"pipeline.split": "2-1", "transport.preset": "peer", "transport.depth": 2}
    rows = [
        row("healthy", [health], 100.0),
        row("fault", ["prefetch-starvation"], 60.0),
        row("remedy", [health], 90.0, knobs=better),
    ]
    figures = score(rows)
    assert figures["regained"][0]["regained"] == pytest.approx(0.75)
    assert figures["regained"][0]["knobs"] == "transport.depth=2"
    assert (figures["remedies"]["runs"], figures["remedies"]["enough"]) == (1, 1)


def test_without_a_healthy_run_nothing_is_judged() -> None:
    figures = score([row("fault", ["prefetch-starvation"], 60.0)])
    assert figures["accuracy"]["share"] is None
