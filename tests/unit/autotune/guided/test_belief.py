"""The belief on rates: it follows readings; ratios of one run tell more; wild ones count less."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from autotune.free_space import FreeSpace
from autotune.guided.belief import Belief, Prior, Reading
from autotune.guided.table import Table

table = Table.of(FreeSpace({"size": (1, 2, 4, 8, 16), "kind": ("a", "b", "c")}))


def believe(*readings: Reading, mean: float = 0.0, **changes: Any) -> Belief:
    prior = Prior(np.full(len(table), mean), np.zeros((len(table), 1)), **changes)
    return Belief(table, prior, readings)


def row(size: int, kind: str) -> int:
    found = table.row({"size": size, "kind": kind})
    assert found is not None
    return found


def test_without_readings_it_is_the_prior() -> None:
    belief = believe(mean=3.0)
    assert belief.mean == pytest.approx(np.full(len(table), 3.0))
    assert (belief.variance > 0.01).all()


def test_readings_draw_the_mean_and_take_the_doubt() -> None:
    before, read = believe(mean=3.0), row(4, "a")
    after = believe(*[Reading(read, 3.2, 0.01)] * 3, mean=3.0)
    assert after.mean[read] == pytest.approx(3.2, abs=0.05)
    assert after.variance[read] < 0.2 * before.variance[read]
    # Neighbours learn more than strangers.
    assert after.variance[row(8, "a")] < after.variance[row(16, "c")]


def test_covariance_agrees_with_variance() -> None:
    belief = believe(Reading(row(1, "a"), 0.1, 0.02), Reading(row(4, "b"), 0.3, 0.02))
    every = np.arange(len(table))
    assert np.diag(belief.covariance(every, every)) == pytest.approx(belief.variance, abs=1e-9)


def test_a_ratio_of_one_run_separates_two_configurations() -> None:
    one, other = row(4, "a"), row(4, "b")
    apart = [Reading(one, 0.00, 0.01), Reading(other, 0.03, 0.01)]
    together = [*apart, Reading(other, 0.03, 0.005, against=one)]

    def doubt(belief: Belief) -> float:
        rows = np.array([one, other])
        covariance = belief.covariance(rows, rows)
        return math.sqrt(covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1])

    assert doubt(believe(*together)) < 0.5 * doubt(believe(*apart))


def test_one_wild_reading_counts_for_less() -> None:
    at = row(4, "a")
    tame = [Reading(at, value, 0.005) for value in (0.0, 0.01, -0.01, 0.005, -0.005)]
    belief = believe(*tame, Reading(at, -0.4, 0.005))
    assert belief.mean[at] > -0.03  # their mean is -0.067


def deviation_between(belief: Belief, one: int, other: int) -> float:
    rows = np.array([one, other])
    covariance = belief.covariance(rows, rows)
    return math.sqrt(covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1])


def test_a_knob_that_was_never_changed_is_no_surer_because_another_does_nothing() -> None:
    sizes = [Reading(row(size, "a"), 0.0, 0.003) for size in (1, 2, 4, 8, 16) for _ in range(3)]
    one, other = row(4, "a"), row(4, "b")
    assert deviation_between(believe(*sizes), one, other) > 0.5 * deviation_between(believe(), one, other)
    kinds = [Reading(row(size, kind), 0.0, 0.003) for size in (1, 16) for kind in "abc" for _ in range(3)]
    assert deviation_between(believe(*sizes, *kinds), one, other) < 0.3 * deviation_between(
        believe(), one, other
    )


def test_a_collapse_in_one_place_says_little_of_others() -> None:
    sound = [Reading(row(size, "a"), 0.0, 0.005) for size in (1, 2, 4, 8)]
    bad, worse = (believe(*sound, Reading(row(16, "b"), -fall, 0.005)) for fall in (0.3, 2.0))
    assert bad.mean[row(16, "b")] < -0.15
    assert worse.mean[row(1, "b")] == pytest.approx(bad.mean[row(1, "b")], abs=1e-9)


def test_roughness_is_learnt() -> None:
    rough = np.random.default_rng(0).normal(0.0, 0.06, len(table))
    readings = [Reading(i, float(value), 0.002) for i, value in enumerate(rough) for _ in range(3)]
    smooth = [Reading(i, 0.0, 0.002) for i in range(len(table)) for _ in range(3)]
    assert believe(*readings).roughness > 2 * believe(*smooth).roughness


def test_evidence_favours_what_explains_the_readings() -> None:
    slope = np.log(table.codes[:, 0] + 1.0)
    readings = [Reading(i, float(slope[i]), 0.005) for i in range(0, len(table), 2)]
    right = Belief(table, Prior(slope, np.zeros((len(table), 1))), readings)
    wrong = Belief(table, Prior(-slope, np.zeros((len(table), 1))), readings)
    assert right.evidence > wrong.evidence + 3
