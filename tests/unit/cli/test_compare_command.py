"""`dflash-profile compare` from the command line: text, JSON, the written evidence, and exit codes for CI."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cli.compare_command import parse_limit
from dflash.contract.errors import UsageError
from dflash.contract.rundir import RunDir
from tests.played_pipeline import play

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs a, slow (its drafter copies), short and other (another workload)."""
    base = tmp_path_factory.mktemp("runs")
    plays: dict[str, dict[str, Any]] = {
        "a": {},
        "slow": {"drafter_copy_s": 0.9, "seed": 1},
        "short": {"windows": 5},
        "other": {"windows": 12, "seed": 2},
    }
    for name, settings in plays.items():
        play(base / name, **{"windows": 24, "targets": 2, "batches_per_window": 4, **settings})
        RunDir(base / name).update(workload={"data.seed": 9 if name == "other" else 0})
    return base


def test_a_slower_run_fails_the_gate_with_its_evidence_written(
    call: Call, runs: Path, tmp_path: Path
) -> None:
    arguments = (
        "compare",
        str(runs / "a"),
        str(runs / "slow"),
        "--fail-above",
        "3%",
        "--out",
        "compare.json",
    )
    code, out, err = call("dflash-profile", *arguments)
    assert (code, err) == (3, "")
    assert "slower than A (beyond noise" in out
    assert "drafters' copies (pageable)" in out
    assert "exit 3: B is slower by more than the limit of 3 %" in out
    assert "emulated" in out
    written = json.loads((tmp_path / "compare.json").read_text())
    assert written["gate"]["exit_code"] == 3
    assert written["outcome"] == "slower"


def test_without_a_limit_nothing_fails(call: Call, runs: Path) -> None:
    code, out, err = call("dflash-profile", "compare", str(runs / "a"), str(runs / "slow"), "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["gate"] is None


def test_what_cannot_be_told_has_a_code_of_its_own(call: Call, runs: Path) -> None:
    code, out, _ = call(
        "dflash-profile", "compare", str(runs / "a"), str(runs / "short"), "--fail-above", "3%"
    )
    assert code == 4
    assert "Not enough data" in out


def test_another_workload_is_refused(call: Call, runs: Path, tmp_path: Path) -> None:
    arguments = ("compare", str(runs / "a"), str(runs / "other"), "--fail-above", "3%", "--out", "c.json")
    code, out, err = call("dflash-profile", *arguments)
    assert (code, out) == (2, "")
    assert "data.seed: 0 in A, 9 in B" in err
    assert not (tmp_path / "c.json").exists()


def test_a_file_that_cannot_be_written_is_told(call: Call, runs: Path) -> None:
    code, _, err = call(
        "dflash-profile", "compare", str(runs / "a"), str(runs / "a"), "--out", "no/such/dir.json"
    )
    assert code == 2
    assert "no/such/dir.json" in err


@pytest.mark.parametrize(("text", "share"), [("3%", 0.03), ("0.5 %", 0.005), (" 12% ", 0.12), ("0%", 0.0)])
def test_limits(text: str, share: float) -> None:
    assert parse_limit(text) == pytest.approx(share)


@pytest.mark.parametrize("text", ["3", "0.03", "-3%", "100%", "three", "%", ""])
def test_what_is_no_limit_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not a limit"):
        parse_limit(text)


def test_a_page_is_written_where_it_is_wanted_and_stdout_stays_as_it_was(
    call: Call, runs: Path, tmp_path: Path
) -> None:
    arguments = ("compare", str(runs / "a"), str(runs / "slow"), "--json")
    _, alone, _ = call("dflash-profile", *arguments)
    code, out, err = call("dflash-profile", *arguments, "--html", str(tmp_path / "c.html"))
    assert (code, out, err) == (0, alone, "")
    assert json.loads(out)["verdict"] in (tmp_path / "c.html").read_text(encoding="utf-8").replace(
        "&#39;", "'"
    )
