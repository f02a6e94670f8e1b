"""`dflash-tune` searches, goes on, shows, and says when nothing could be measured."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from autotune.runner import Request
from autotune.telemetry import Cause, Failed, FailureKind, Outcome, Telemetry
from dflash.contract.config import load_config

Call = Callable[..., tuple[int, str, str]]
small = ("--trials", "3", "--repeats", "1", "--seconds", "1")


class FakeRunner:
    """Runs nothing: diagnosis would point at the transport, and be right."""

    def run(self, request: Request) -> Outcome:
        request.run_path.mkdir(parents=True)
        rate = 2000.0 if request.config.transport.preset == "peer" else 1000.0
        return Telemetry(
            tokens_per_s=rate,
            low=0.99 * rate,
            high=1.01 * rate,
            windows=20,
            steps=25,
            supervised_tokens=1000,
            losses=(5.0, 4.0, 3.0, 2.5, 2.2, 2.0),
            causes=(Cause(name="slow-copies", summary="as seen", remedy={"transport.preset": "peer"}),),
        )


class FailingRunner:
    def run(self, request: Request) -> Outcome:
        request.run_path.mkdir(parents=True)
        return Failed(FailureKind.crash, "killed by SIGSEGV in list[str] [/red]")


class InterruptedRunner:
    def run(self, request: Request) -> Outcome:
        raise KeyboardInterrupt


@pytest.fixture
def tune(monkeypatch: pytest.MonkeyPatch, call: Call) -> Call:
    """`dflash-tune` with a runner that needs no trainer."""

    def run(*arguments: str, runner: type = FakeRunner) -> tuple[int, str, str]:
        monkeypatch.setattr("autotune.in_place.InPlaceRunner", lambda **given: nullcontext(runner()))
        return call("dflash-tune", *arguments)

    return run


def test_search_recommends_and_leaves_a_configuration_that_loads(tune: Call, tmp_path: Path) -> None:
    code, out, err = tune("search", *small)
    assert code == 0, err
    best = load_config(tmp_path / "dflash-study/best.toml")
    assert best.transport.preset == "peer"
    assert "transport.preset host → peer" in out
    assert "2.00 times as fast" in out
    assert str(tmp_path / "dflash-study/report.html") in out
    assert "trial 0: the starting configuration" in err
    assert "trial 0:" not in out, "progress is talk"


def test_json_is_alone_on_stdout(tune: Call, tmp_path: Path) -> None:
    code, out, _ = tune("search", *small, "--study-dir", "[/bold] ünï", "--json")
    assert code == 0
    document = json.loads(out)
    assert document["verdict"] == "better"
    assert Path(document["best_toml"]).is_file()
    assert Path(document["report"]).read_text().startswith("<!DOCTYPE html>")
    assert document["study_dir"] == str(tmp_path / "[/bold] ünï")


def test_the_same_line_goes_on_and_repeats_nothing(tune: Call, tmp_path: Path) -> None:
    tune("search", *small)
    before = sorted(p.name for p in (tmp_path / "dflash-study/trials").iterdir())
    code, _, err = tune("search", *small, runner=FailingRunner)
    assert code == 0
    assert "going on with" in err
    assert sorted(p.name for p in (tmp_path / "dflash-study/trials").iterdir()) == before


def test_show_tells_the_same_as_search(tune: Call, tmp_path: Path) -> None:
    _, searched, _ = tune("search", *small, "--json")
    code, shown, _ = tune("show", str(tmp_path / "dflash-study"), "--json")
    assert code == 0
    assert json.loads(shown) == json.loads(searched)


def test_nothing_measurable_exits_1_with_the_reasons(tune: Call) -> None:
    code, out, _ = tune("search", *small, runner=FailingRunner)
    assert code == 1
    assert "killed by SIGSEGV in list[str] [/red]" in out
    assert "best.toml" not in out


def test_ctrl_c_exits_130_and_says_how_to_go_on(tune: Call) -> None:
    code, out, err = tune("search", *small, runner=InterruptedRunner)
    assert (code, out) == (130, "")
    assert "the same line goes on" in err
    assert tune("search", *small)[0] == 0


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["search", "--trials", "0"], "--trials"),
        (["search", "--repeats", "-1"], "--repeats"),
        (["search", "--seconds", "nan"], "--seconds"),
        (["search", "--seconds", "inf"], "--seconds"),
        (["search", "--set", "split=0-1"], "TARGETS-DRAFTERS"),
        (["search", "--set", "devices.kind=cuda"], "devices.kind"),
        (["search", "missing.toml"], "missing.toml"),
        (["show", "nowhere"], "nowhere"),
        (["show", "nowhere", "--json"], "nowhere"),
    ],
)
def test_a_mistake_is_told_in_one_message(
    call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: list[str], named: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    code, out, err = call("dflash-tune", *arguments)
    assert (code, out) == (2, "")
    assert named in err
    assert list(tmp_path.iterdir()) == [], "a refused request leaves nothing behind"


def test_another_data_file_is_another_study(tune: Call, tmp_path: Path) -> None:
    (tmp_path / "chats.jsonl").write_text("{}")
    assert tune("search", *small, "--data", "chats.jsonl")[0] == 0
    code, _, err = tune("search", *small)
    assert code == 2
    assert "chats.jsonl" in err


def test_a_study_of_other_conditions_is_not_mixed(tune: Call) -> None:
    tune("search", *small)
    code, _, err = tune("search", *small, "--set", "data.seed=1")
    assert code == 2
    assert "data.seed" in err
