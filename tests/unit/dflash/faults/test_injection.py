"""Requests are read or refused in words; the truth is written only where it was asked for."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from benchmarks.small_runs import small_config, write_conversations
from dflash.contract.errors import DeviceError, UsageError
from dflash.faults.catalogue import catalogue
from dflash.faults.injection import Injection, prepare_injected, truth_variable
from dflash.faults.pace import Pace
from dflash.faults.rig import Rig
from dflash.trainer import Trainer
from dflash.transport.carrier import Edge, LogicalCarrier
from dflash.transport.paths import AutoPath


def test_a_request_is_a_name_and_a_strength() -> None:
    injection = Injection.parse("slow-data:0.25")
    assert (injection.fault.name, injection.strength) == ("slow-data", 0.25)
    assert Injection.parse("none").strength == 0


@pytest.mark.parametrize(
    ("request_text", "told"),
    [
        ("slow-dta:0.5", "did you mean slow-data?"),
        ("slow-data", "found: none"),
        ("slow-data:much", "found: much"),
        ("slow-data:nan", "found: nan"),
        ("slow-data:1", "0 ≤ STRENGTH < 1"),
        ("slow-data:-0.1", "found: -0.1"),
        ("slow-target:0.5", "0 ≤ STRENGTH < 0.5"),
    ],
)
def test_what_cannot_be_planted_is_refused(request_text: str, told: str) -> None:
    with pytest.raises(UsageError, match="--inject") as refusal:
        Injection.parse(request_text)
    assert told in refusal.value.render()


def test_gpus_have_a_pace_of_their_own() -> None:
    trainer = cast(Trainer, SimpleNamespace(devices=SimpleNamespace(emulated=False)))
    with pytest.raises(DeviceError, match="logical devices only"):
        Rig(trainer)


def test_the_truth_is_written_where_the_variable_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    truth = tmp_path / "truth.json"
    monkeypatch.setenv(truth_variable, str(truth))
    told: list[object] = []
    Injection.parse("slow-data:0.5")._run(lambda: told.append(json.loads(truth.read_text())))
    during, after = told[0], json.loads(truth.read_text())
    assert isinstance(during, dict)
    assert (during["to_ns"], during["cause"]) == (None, "prefetch-starvation")
    assert after["to_ns"] >= after["from_ns"] == during["from_ns"]


def test_without_the_variable_no_truth_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(truth_variable, raising=False)
    monkeypatch.chdir(tmp_path)
    assert Injection.parse("slow-data:0.5")._run(lambda: 3) == 3
    assert list(tmp_path.iterdir()) == []


def test_at_strength_zero_the_cause_is_health(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(truth_variable, str(tmp_path / "truth.json"))
    Injection.parse("slow-data:0")._run(lambda: None)
    assert json.loads((tmp_path / "truth.json").read_text())["cause"] == "target-bound-healthy"


def test_strengths_are_shares_of_the_throughput() -> None:
    pace = Pace(targets=2, drafters=1)
    assert pace.forward_s / (pace.forward_s + pace.forward_loss_s(0.25)) == pytest.approx(0.75)
    assert pace.interval_s / pace.slow_step_s(0.25) == pytest.approx(0.75)
    slower = pace.forward_s * pace.straggling(0.25)
    assert (1 / pace.forward_s + 1 / slower) * pace.interval_s == pytest.approx(0.75)


def test_a_healthy_run_is_bound_by_its_targets() -> None:
    for targets, drafters in ((2, 1), (2, 2)):
        pace = Pace(targets, drafters)
        assert pace.step_s / drafters < pace.interval_s


@pytest.mark.parametrize("preset", ["shared", "peer"])
def test_homes_of_a_shared_queue_follow_no_turns(tmp_path: Path, preset: str) -> None:
    config = small_config(write_conversations(tmp_path / "conversations.jsonl")).replacing(
        {**catalogue["shared-queue"].knobs, "transport.preset": preset}
    )
    dispatch = prepare_injected("shared-queue:0.3", config).transport._dispatch
    homes = []
    for _ in range(100):
        homes.append(dispatch.reserve(100))
        dispatch.release(homes[-1], 100)
    away = sum(home != turn % 2 for turn, home in enumerate(homes))  # if drafters take in turn
    assert (25 <= away <= 75) == (preset == "shared")


def test_a_straggling_link_is_one_of_those_between_targets_and_drafters(tmp_path: Path) -> None:
    data = write_conversations(tmp_path / "conversations.jsonl")
    config = small_config(data).replacing({"transport.preset": "peer", "pipeline.split": "2-2"})
    trainer = prepare_injected("straggling-link:0.5", config)
    carrier = trainer.transport._carrier
    assert isinstance(carrier, LogicalCarrier)
    (one, two), (first, second) = trainer.devices.targets, trainer.devices.drafters
    speeds = {
        (src, dst): carrier._link(Edge(src, dst, "peer")).gigabytes_per_s
        for src in (one, two)
        for dst in (first, second)
    }
    slow = speeds.pop((one, first))
    assert len(set(speeds.values())) == 1
    # A copy takes twice what a forward does, as target 0 shall; its siblings' take a fiftieth.
    assert min(speeds.values()) / slow == pytest.approx(2.0 / 0.02)


def test_path_auto_goes_round_the_slow_link_as_if_it_had_been_probed(tmp_path: Path) -> None:
    data = write_conversations(tmp_path / "conversations.jsonl")
    config = small_config(data).replacing({"transport.preset": "auto"})
    trainer = prepare_injected("straggling-link:0.5", config)
    one, two = trainer.devices.targets
    (home,) = trainer.devices.drafters
    path = trainer.transport._path
    assert isinstance(path, AutoPath)
    assert (path._way(one, home), path._way(two, home)) == ("pinned", "peer")
    told = {(route.src, route.dst): route.path for route in trainer.routes}
    assert told[one.name, home.name] == "pinned"
    assert told[two.name, home.name] == "peer"


def test_every_fault_stands_under_its_own_name() -> None:
    assert len(catalogue) >= 13
    assert all(name == fault.name for name, fault in catalogue.items())


def test_nothing_of_the_product_looks_at_faults_but_the_flag(repository: Path) -> None:
    looking = {
        path.relative_to(repository).as_posix()
        for package in ("dflash", "profiler", "autotune", "reports", "cli")
        for path in (repository / package).rglob("*.py")
        if "faults" not in path.parts and _imports_faults(path)
    }
    assert looking == {"dflash/__main__.py"}


def _imports_faults(path: Path) -> bool:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        if any(name.startswith("dflash.faults") for name in names):
            return True
    return False
