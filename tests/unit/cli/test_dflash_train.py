"""`dflash-train` checks the request, prepares the run directory, and becomes the trainer."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.dflash_train import program
from dflash.contract.config import all_knobs, load_config
from dflash.contract.errors import CheckpointError, UsageError
from dflash.contract.rundir import create_run

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., list[str]]:
    """Run the command up to the point where it would become the trainer; returns that command line."""
    monkeypatch.chdir(tmp_path)

    def become(path: str, command: list[str]) -> None:
        assert path == command[0] == sys.executable
        raise StopIteration(command)

    def start(*arguments: str) -> list[str]:
        monkeypatch.setattr("os.execv", become)
        with pytest.raises(StopIteration) as stopped:
            program.app(list(arguments), standalone_mode=False)
        command = stopped.value.value
        assert command[1:4] == ["-P", "-m", "dflash"]
        return list(command[4:])

    return start


def test_run_prepares_a_directory_that_holds_the_configuration(started: Callable[..., list[str]]) -> None:
    arguments = started("run", "--run-dir", "here/[2026] run", "--set", "split=1-2", "--max-steps", "3")
    assert arguments == ["run", "--run-dir", "here/[2026] run"]
    directory = Path("here/[2026] run")
    assert load_config(directory / "config.toml") == load_config(None, ["split=1-2", "run.max_steps=3"])
    assert json.loads((directory / "run.json").read_text())["status"] == "running"


@pytest.mark.parametrize("command", ["run", "plan", "check-data"])
def test_a_real_target_in_the_embedded_default_is_warned_of(
    command: str, started: Callable[..., list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It names what is cut down and not set; a file, an empty one too, stands for the recipe."""
    empty = tmp_path / "empty.toml"
    empty.touch()
    real = ("--set", "target.model=/models/own", "--set", "drafter.layers=5")
    started(command, *real)
    told = capsys.readouterr().err
    assert told.count("warning:") == 1
    for words in ("drafter.block_size=8", "data.max_length=256", "an empty one too"):
        assert words in told
    assert "drafter.layers" not in told
    started(command, str(empty), *real)
    started(command, "--set", "target.model=random:qwen3-8b")
    assert capsys.readouterr().err == ""


def test_run_without_a_directory_makes_one_under_runs(started: Callable[..., list[str]]) -> None:
    [_, _, directory, json_flag] = started("run", "--json")
    assert json_flag == "--json"
    assert Path(directory).parent == Path("runs")
    assert (Path(directory) / "config.toml").is_file()


def test_a_fault_to_plant_is_handed_on(started: Callable[..., list[str]]) -> None:
    assert started("run", "--inject", "gil-hog:0.5")[-2:] == ["--inject", "gil-hog:0.5"]


def test_steps_to_trace_are_handed_on(started: Callable[..., list[str]]) -> None:
    assert started("run", "--trace", "100:105")[-2:] == ["--trace", "100:105"]
    assert started("run", "--trace", "7")[-2:] == ["--trace", "7:7"]


def test_bad_steps_to_trace_are_refused_before_a_run_is_made(started: Callable[..., list[str]]) -> None:
    with pytest.raises(UsageError, match="not a range"):
        program.app(["run", "--trace", "9:3"], standalone_mode=False)
    assert not Path("runs").exists()


def test_run_reads_a_file_and_lets_set_win(started: Callable[..., list[str]]) -> None:
    Path("my.toml").write_text("[run]\nepochs = 4\n[optimizer]\nlr = 0.5\n")
    [_, _, directory] = started("run", "my.toml", "--set", "lr=0.25")
    config = load_config(Path(directory) / "config.toml")
    assert (config.run.epochs, config.optimizer.lr) == (4, 0.25)


@pytest.mark.parametrize("named", ["before", "before/checkpoints", "before/checkpoints/step-7"])
def test_a_run_goes_on_with_its_own_configuration(
    started: Callable[..., list[str]], tmp_path: Path, named: str
) -> None:
    before = create_run(tmp_path / "before", command=["x"])
    before.config_path.write_text("[run]\nepochs = 4\n[optimizer]\nlr = 0.5\n")
    (before.checkpoints / "step-7").mkdir(parents=True)
    [_, _, directory] = started("run", "--resume", named, "--set", "split=2-1")
    config = load_config(Path(directory) / "config.toml")
    assert (config.run.epochs, config.optimizer.lr, str(config.split)) == (4, 0.5, "2-1")
    assert config.run.resume == str(tmp_path / named)
    Path("other.toml").write_text("[run]\nepochs = 9\n")
    [_, _, directory] = started("run", "other.toml", "--resume", named)
    assert load_config(Path(directory) / "config.toml").run.epochs == 9


def test_going_on_from_nothing_is_refused_before_a_run_is_made(started: Callable[..., list[str]]) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint to resume from"):
        program.app(["run", "--resume", "nowhere"], standalone_mode=False)
    assert not Path("runs").exists()


def test_data_path_becomes_absolute(started: Callable[..., list[str]], tmp_path: Path) -> None:
    Path("-starts-with-dash.jsonl").write_text("{}")
    [_, _, directory] = started("run", "--data", "-starts-with-dash.jsonl")
    config = load_config(Path(directory) / "config.toml")
    assert config.data.path == str(tmp_path / "-starts-with-dash.jsonl")


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The run directory of a recorder that has started this process."""
    run = create_run(tmp_path / "recorded", command=["x"])
    monkeypatch.setenv("DFLASH_RUN_DIR", str(run.path))
    return run.path


def test_run_uses_the_recorders_directory(started: Callable[..., list[str]], recorded: Path) -> None:
    assert started("run") == ["run", "--run-dir", str(recorded)]
    assert (recorded / "config.toml").is_file()
    assert not Path("runs").exists()


def test_the_same_directory_twice_is_no_contradiction(
    started: Callable[..., list[str]], recorded: Path
) -> None:
    assert started("run", "--run-dir", "recorded")[2] == str(recorded)


def test_check_data_hands_the_configuration_over(started: Callable[..., list[str]]) -> None:
    command, path, json_flag = started("check-data", "--max-length", "64", "--set", "data.seed=3", "--json")
    assert (command, json_flag) == ("check-data", "--json")
    # A process that took this one's place could read it: it is open across exec.
    assert os.get_inheritable(int(path.rpartition("/")[2]))
    assert load_config(Path(path)) == load_config(None, ["data.max_length=64", "data.seed=3"])


def test_strict_is_handed_over(started: Callable[..., list[str]], tmp_path: Path) -> None:
    path = started("check-data", "--strict")[1]
    assert load_config(Path(path)) == load_config(None, ["data.strict=true"])
    _, _, directory, *_ = started("run", "--strict")
    assert load_config(Path(directory) / "config.toml").data.strict


def test_data_may_be_a_directory(started: Callable[..., list[str]], tmp_path: Path) -> None:
    (tmp_path / "rows").mkdir()
    path = started("check-data", "--data", "rows")[1]
    assert load_config(Path(path)).data.path == str(tmp_path / "rows")


def test_plan_hands_the_configuration_over(started: Callable[..., list[str]]) -> None:
    command, path, json_flag = started("plan", "--set", "target.model=random:qwen3-8b", "--json")
    assert (command, json_flag) == ("plan", "--json")
    assert load_config(Path(path)) == load_config(None, ["target.model=random:qwen3-8b"])


refused = [
    (["--set", "token_bugdet=8192"], "pipeline.token_budget"),
    (["--set", "transport.depth=0"], "1 to 1024"),
    (["--set", "token_budget=-1"], "16 or more"),
    (["--set", "split=3-0"], "TARGETS-DRAFTERS"),
    (["--set", "split=x"], "TARGETS-DRAFTERS"),
    (["--set", "transport=per"], "did you mean 'peer'?"),
    (["--set", "depth"], "knob=value"),
    (["--set", "seed=1"], "target.seed or drafter.seed or data.seed"),
    (["--set", "token_budget=64"], "data.max_length (256)"),
    (["--max-steps", "-1"], "0 or more"),
    (["--max-steps", "many"], "--max-steps"),
    (["missing.toml"], "missing.toml"),
    (["--unknown-flag"], "--unknown-flag"),
    (["one.toml", "two.toml"], "two.toml"),
]


@pytest.mark.parametrize(("arguments", "named"), refused)
def test_a_mistake_is_told_in_one_message(
    call: Call, tmp_path: Path, arguments: list[str], named: str
) -> None:
    code, out, err = call("dflash-train", "run", *arguments)
    assert (code, out) == (2, "")
    assert named in err
    assert list(tmp_path.iterdir()) == [], "a refused request leaves nothing behind"


def test_two_run_directories_contradict(call: Call, recorded: Path, tmp_path: Path) -> None:
    code, _, err = call("dflash-train", "run", "--run-dir", "other")
    assert code == 2
    assert "--run-dir other" in err
    assert not (tmp_path / "other").exists()


def test_an_existing_run_is_never_overwritten(call: Call, tmp_path: Path) -> None:
    create_run(tmp_path / "old", command=["x"])
    before = (tmp_path / "old/run.json").read_bytes()
    code, _, err = call("dflash-train", "run", "--run-dir", "old")
    assert code == 2
    assert "never overwritten" in err
    assert (tmp_path / "old/run.json").read_bytes() == before


def test_one_recording_has_one_trainer(call: Call, recorded: Path) -> None:
    (recorded / "config.toml").write_text("")
    code, _, err = call("dflash-train", "run")
    assert code == 2
    assert "already has a trainer" in err


def test_help_knobs_lists_every_knob(call: Call) -> None:
    code, out, _ = call("dflash-train", "run", "--help-knobs")
    assert code == 0
    assert [k.path for k in all_knobs if f"  {k.path} = " not in out] == []
