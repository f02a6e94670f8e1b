"""Which runs may be compared, and how differences are told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dflash.contract.errors import UsageError
from profiler.comparability import check_comparable, differences
from profiler.run import Run
from tests.run_builder import RunBuilder


def run_of(path: Path, *, emulated: bool | None = True, **manifest: Any) -> Run:
    RunBuilder(path, emulated=emulated).finish(**manifest)
    return Run.open(path)


def test_every_knob_of_the_signal_that_differs_is_named(tmp_path: Path) -> None:
    a = run_of(tmp_path / "a", workload={"data.seed": 0, "window.tokens": 2048, "drafter.taps": [1, 2]})
    b = run_of(tmp_path / "b", workload={"data.seed": 1, "window.tokens": 2048, "optimizer.lr": 0.1})
    with pytest.raises(UsageError) as caught:
        check_comparable(a, b)
    found = str(caught.value.found)
    assert "data.seed: 0 in A, 1 in B" in found
    assert "drafter.taps: [1, 2] in A, not recorded in B" in found
    assert "optimizer.lr: not recorded in A, 0.1 in B" in found
    assert "window.tokens" not in found


def test_a_long_list_of_differences_is_cut_and_counted(tmp_path: Path) -> None:
    a = run_of(tmp_path / "a", workload={f"k{i}": 0 for i in range(20)})
    b = run_of(tmp_path / "b", workload={f"k{i}": 1 for i in range(20)})
    with pytest.raises(UsageError, match="and 8 more"):
        check_comparable(a, b)


def test_the_length_of_a_run_is_not_its_work(tmp_path: Path) -> None:
    same = {"data.seed": 0}
    a = run_of(tmp_path / "a", workload={**same, "run.max_seconds": 60.0, "run.epochs": 1})
    b = run_of(tmp_path / "b", workload={**same, "run.max_seconds": 0.0, "run.epochs": 9})
    check_comparable(a, b)


@pytest.mark.parametrize("workload", [None, {}, "text", [1]])
def test_a_run_that_does_not_say_its_work_is_refused(tmp_path: Path, workload: object) -> None:
    a = run_of(tmp_path / "a", workload={"data.seed": 0})
    b = run_of(tmp_path / "b", workload=workload)
    with pytest.raises(UsageError, match="does not say what its work was") as caught:
        check_comparable(a, b)
    assert caught.value.where == str(tmp_path / "b")


@pytest.mark.parametrize(("one", "two"), [(True, False), (True, None), (False, None)])
def test_emulated_is_never_compared_with_real(tmp_path: Path, one: bool | None, two: bool | None) -> None:
    a = run_of(tmp_path / "a", emulated=one, workload={"data.seed": 0})
    b = run_of(tmp_path / "b", emulated=two, workload={"data.seed": 0})
    with pytest.raises(UsageError, match="logical devices"):
        check_comparable(a, b)


def test_a_list_from_json_equals_the_tuple_it_was() -> None:
    assert differences({"taps": (1, 2)}, {"taps": [1, 2]}) == ()
    found = differences({"x": True, "y": ""}, {"x": False, "y": None})
    assert [(d.name, d.a, d.b) for d in found] == [("x", "true", "false"), ("y", "''", "unknown")]
