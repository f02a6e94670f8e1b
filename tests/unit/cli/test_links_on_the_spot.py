"""Diagnose and report measure suspected links where the run's GPUs are here, else they say why not."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from cli import links_on_the_spot
from dflash.contract.link_facts import LinkEdge, LinkFacts
from dflash.contract.rundir import RunDir
from tests.played_pipeline import play

Call = Callable[..., tuple[int, str, str]]
answer = LinkFacts(
    measured_utc="2026-01-01T00:00:00Z", emulated=False, torch="2.11", numa_nodes=None, iommu=None,
    numactl=False, devices=(),
    edges=(LinkEdge(src="cuda:1", dst="host", path="pageable", gb_per_s=9.0, wrong_words=0),),
)  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Two targets that copy to host memory on their own time, on GPUs that the run calls logical:0 and 1."""
    path = play(tmp_path / "run", targets=2, windows=20, preset="host", target_copy_s=0.5, emulated=False)
    devices = [
        {"name": f"logical:{i}", "role": role, "index": index, "uuid": f"GPU-{i}"}
        for i, (role, index) in enumerate((("target", 0), ("target", 1), ("drafter", 0)))
    ]
    RunDir(path).update(devices=devices)
    return path


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the child was asked; `code` and `answer` are what it gives, `place` why it is not to be asked."""
    seen: dict[str, Any] = {"code": 0, "answer": json.dumps(answer.to_json()), "place": None}

    def ask(
        arguments: Sequence[str], *, text: str, limit_s: float, environ: Mapping[str, str]
    ) -> tuple[int, str]:
        seen.update(arguments=list(arguments), visible=environ["CUDA_VISIBLE_DEVICES"], limit_s=limit_s)
        return seen["code"], seen["answer"]

    monkeypatch.setattr(links_on_the_spot, "ask_trainer", ask)
    monkeypatch.setattr("profiler.run_place.why_not_here", lambda *_: seen["place"])
    return seen


def evidence_of(document: str) -> dict[str, Any]:
    finding = json.loads(document)["findings"][0]
    assert finding["cause"] == "sync-d2h-on-critical-path"
    return {item["name"]: item for item in finding["evidence"]}


def test_the_links_are_asked_for_by_the_runs_gpus_and_told_by_its_names(
    call: Call, asked: dict[str, Any], run: Path
) -> None:
    code, out, err = call("dflash-profile", "diagnose", str(run), "--json")
    assert code == 0
    assert "measuring the suspected links" in err
    assert asked["visible"] == "GPU-0,GPU-1,GPU-2"
    assert asked["limit_s"] <= 20
    ways = {
        way for word, way in zip(asked["arguments"], asked["arguments"][1:], strict=False) if word == "--only"
    }
    assert ways == {"cuda:0,host,pageable", "cuda:1,host,pageable"}
    told = evidence_of(out)
    assert told["logical:1 to host (pageable) by itself, measured now"]["value"] == 9.0
    assert told["logical:0 to host (pageable) by itself, measured now"]["reason"] == "it was not measured"
    kept = json.loads(RunDir(run).findings_path.read_text())
    assert kept == json.loads(out)


def test_the_report_has_the_figure_too(call: Call, asked: dict[str, Any], run: Path) -> None:
    assert call("dflash-profile", "report", str(run))[0] == 0
    assert "by itself, measured now" in RunDir(run).report_path.read_text(encoding="utf-8")


@pytest.mark.parametrize("command", ["diagnose", "report"])
def test_who_does_not_want_it_asks_nobody(call: Call, asked: dict[str, Any], run: Path, command: str) -> None:
    assert call("dflash-profile", command, str(run), "--no-measure")[0] == 0
    assert "arguments" not in asked
    assert "measured now" not in RunDir(run).findings_path.read_text()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"place": "this is not the run's machine: GPU-0 is not here"}, "not the run's machine"),
        ({"code": 2}, "ended with code 2"),
        ({"answer": "nonsense"}, "Expecting value"),
    ],
)
def test_what_hinders_it_is_said_and_hinders_nothing_else(
    call: Call, asked: dict[str, Any], run: Path, change: dict[str, Any], reason: str
) -> None:
    asked.update(change)
    code, out, _ = call("dflash-profile", "diagnose", str(run), "--json")
    assert code == 0
    assert reason in evidence_of(out)["links by themselves, measured now"]["reason"]


def test_on_logical_devices_there_is_nothing_to_measure(call: Call, tmp_path: Path) -> None:
    path = play(tmp_path / "run", targets=2, windows=20, preset="host", target_copy_s=0.5)
    code, out, err = call("dflash-profile", "diagnose", str(path), "--json")
    assert (code, err) == (0, "")
    assert "nothing to measure" in evidence_of(out)["links by themselves, measured now"]["reason"]
