"""The search in place has configurations to try on one GPU as on two."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

from autotune.machine import Gpu, Machine
from autotune.runner import Request
from autotune.telemetry import Failed, FailureKind, Outcome, Telemetry
from benchmarks import search_on_gpus
from benchmarks.search_on_gpus import Page, parts_of
from benchmarks.tuning_case import TuningCase


@pytest.mark.parametrize(
    ("gpus", "split"), [(1, "1-1"), (1, "colocated-1"), (1, "2-1"), (2, "1-1"), (2, "colocated-2")]
)
def test_every_configuration_runs_on_the_gpus_there_are(
    gpus: int, split: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cards = tuple(Gpu("NVIDIA H200", f"GPU-{number}", 143 << 30) for number in range(gpus))
    machine = Machine(cpu="any", cpus=16, gpus=cards, host_bytes=128 << 30)
    monkeypatch.setattr(search_on_gpus, "read_machine", lambda: machine)
    choice = argparse.Namespace(tiny=False, gpus=gpus, state=None)
    page = Page(choice, tmp_path, TuningCase(tiny=False, gpus=gpus))
    space = page.space(split)
    assert space.size >= 30
    assert {space.config(values).device_count for values in space.configurations} == {gpus}
    assert page.too_large(split).device_count == gpus


def test_a_trial_tells_its_parts_where_it_left_them(repository: Path, tmp_path: Path) -> None:
    run = repository / "tests/data/runs/h200_one_gpu/pieces"
    first, second = parts_of(run, 0.0, 0.0), parts_of(run, -1.0, 2.0)
    assert first["stages_s"] == second["stages_s"] == pytest.approx(13.5, abs=1.0)
    assert second["before_s"] - first["before_s"] == pytest.approx(1.0)
    assert second["after_s"] - first["after_s"] == pytest.approx(2.0)
    assert first["before_s"] + first["stages_s"] == pytest.approx(-first["after_s"])
    (tmp_path / "events").mkdir()
    assert parts_of(tmp_path, 0.0, 1.0) == {}
    (tmp_path / "events/trainer.arrow").write_bytes(b"killed")
    assert parts_of(tmp_path, 0.0, 1.0) == {}


def search(state: Path, out: Path, root: Path, trials: int) -> tuple[Page, list[str]]:
    """One call of the page with runs that take no time; the page, and the kinds of its runs in order."""
    asked: list[str] = []

    class Runner:
        renewals: tuple[str, ...] = ()

        def run(self, request: Request) -> Outcome:
            config = request.config
            assert config is not None
            asked.append("fresh" if request.fresh else "in place")
            if config.pipeline.token_budget > 256:
                asked[-1] = "overflow"
                return Failed(FailureKind.out_of_memory, "no room")
            pace = 1000.0 + config.pipeline.token_budget
            return Telemetry(tokens_per_s=pace, low=0.99 * pace, high=1.01 * pace, windows=20, steps=24)

    choice = argparse.Namespace(
        **{"tiny": True, "gpus": 1, "state": state, "out": out, "splits": "1-1", "trials": trials},
        **{"seconds": 1.0, "limit_s": 600.0, "layers": 2, "leave_gb": 0.0},
    )
    page, runner = Page(choice, root, TuningCase(tiny=True, gpus=1)), Runner()
    room: Any = runner
    page.search(room, "1-1", trials, until_s=600.0)
    page.overflow(room, "1-1")
    return page, asked


def test_a_second_call_goes_on_with_the_studies_of_the_first(tmp_path: Path) -> None:
    out, state = tmp_path / "a.json", tmp_path / "state.json"
    first, asked = search(state, out, tmp_path / "1", trials=3)
    assert asked == ["in place"] * 3 + ["overflow"]
    second, asked = search(state, out, tmp_path / "2", trials=5)
    assert asked == ["in place"] * 2  # three are known, and it is known what does not fit
    assert second.rows[:4] == first.rows
    assert len(second.trials["1-1"]) == 5
    assert [study["trials"] for study in second.studies] == [3, 5]
    points = [tuple(row["values"].items()) for row in second.rows if row["kind"] == "trial"]
    assert len(set(points)) == 5
