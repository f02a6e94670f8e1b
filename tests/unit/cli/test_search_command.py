"""`dflash-tune search --plan`, budgets, spaces and held knobs; `resume`, `export` and `replay`."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from autotune.runner import Request
from autotune.telemetry import Failed, FailureKind, Outcome, Telemetry
from dflash.contract.config import load_config

Call = Callable[..., tuple[int, str, str]]
Run = Callable[..., subprocess.CompletedProcess[str]]
small = ("--trials", "3", "--repeats", "1", "--seconds", "1")
heavy = ("torch", "transformers", "pandas", "numpy", "plotly", "optuna", "sklearn", "pyarrow")


class Runner:
    """Runs nothing. `pace` makes everything faster or slower; at budget 256 it runs out of memory."""

    pace = 1.0
    asked: list[Request]

    def run(self, request: Request) -> Outcome:
        request.run_path.mkdir(parents=True)
        self.asked.append(request)
        assert request.config is not None
        if request.config.pipeline.token_budget == 256:
            return Failed(FailureKind.out_of_memory, "CUDA out of memory")
        rate = self.pace * (2000.0 if request.config.transport.preset == "peer" else 1000.0)
        return Telemetry(
            tokens_per_s=rate,
            low=0.99 * rate,
            high=1.01 * rate,
            windows=20,
            steps=25,
            supervised_tokens=1000,
            losses=(5.0, 4.0, 3.0, 2.5, 2.2, 2.0),
        )


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> Runner:
    made = Runner()
    made.asked = []
    monkeypatch.setattr("autotune.in_place.InPlaceRunner", lambda **given: nullcontext(made))
    monkeypatch.setattr("autotune.runner.RecordedRunner", lambda **given: made)  # of `replay`
    return made


@pytest.fixture
def tune(call: Call, runner: Runner) -> Call:
    """`dflash-tune` with a runner that needs no trainer."""
    return lambda *arguments: call("dflash-tune", *arguments)


@pytest.fixture
def study(tune: Call, tmp_path: Path) -> Path:
    """A study of presets: trial 0 is the start, and a faster one is known."""
    (tmp_path / "presets.toml").write_text('only = true\n[space]\npreset = ["host", "peer"]\n')
    code, _, err = tune("search", *small, "--space", "presets.toml", "--study-dir", "st")
    assert code == 0, err
    return tmp_path / "st"


def test_a_plan_runs_nothing_and_leaves_nothing(tune: Call, runner: Runner, tmp_path: Path) -> None:
    code, out, err = tune("search", "--plan", "--trials", "5")
    assert (code, err) == (0, "")
    assert "5 configurations and 15 further runs of 12 s" in out
    assert "combinations can run" in out
    assert "1. the starting configuration" in out
    assert not runner.asked
    assert list(tmp_path.iterdir()) == []


def test_a_plan_for_a_real_target_in_the_embedded_default_warns(tune: Call, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    _, _, err = tune("search", "--plan", "--set", f"target.model={model}")
    assert "no CONFIG was named" in err


def test_a_plan_imports_nothing_heavy(run_python: Run) -> None:
    code = (
        "import json, sys\n"
        "from cli.dflash_tune import program\n"
        "try: program.run(['search', '--plan', '--gpus', '8', '--gpu-memory-gb', '48',\n"
        "    '--set', 'target.model=random:qwen3-8b', '--set', 'window.tokens=65536'])\n"
        "except SystemExit as end: assert not end.code\n"
        f"print(json.dumps([n for n in {heavy!r} if n in sys.modules]), file=sys.stderr)"
    )
    result = run_python(code)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stderr.splitlines()[-1]) == []


def test_a_plan_for_another_machine_rules_out_by_its_memory(tune: Call) -> None:
    model = ("--set", "target.model=random:qwen3-8b", "--set", "pipeline.split=2-1")
    counts = {}
    for size in ("24", "141"):
        code, out, err = tune("search", "--plan", *model, "--gpus", "4", "--gpu-memory-gb", size, "--json")
        assert code == 0, err
        document = json.loads(out)
        assert document["machine"]["declared"] is True
        assert document["cost"]["gpus"] == 4
        out_of_memory = [o["count"] for o in document["ruled_out"] if "memory" in o["kind"]]
        counts[size] = sum(out_of_memory)
    assert counts["24"] > counts["141"] == 0


def test_budgets_bound_the_cost(tune: Call) -> None:
    budget = ("--minutes", "3", "--gpu-hours", "0.1", "--tolerance", "0.05")
    code, out, _ = tune("search", "--plan", "--gpus", "4", *budget, "--json")
    assert code == 0
    cost = json.loads(out)["cost"]
    assert (cost["limited_by"], cost["gpu_hours"]) == ("GPU-hours", pytest.approx(0.1))


def test_where_nothing_can_run_it_exits_1_with_reasons_and_a_next_step(tune: Call, runner: Runner) -> None:
    model = ("--set", "target.model=random:qwen3-8b", "--gpus", "2", "--gpu-memory-gb", "8")
    code, out, err = tune("search", "--plan", *model)
    assert (code, out) == (1, "")
    assert "does not fit into memory" in err
    assert "the smallest combination needs at least" in err
    assert "best" not in err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--gpus", "4"), "--plan"),
        (("--gpu-memory-gb", "80"), "--plan"),
        (("--plan", "--gpu-memory-gb", "80"), "--gpus 8"),
        (("--plan", "--gpus", "2", "--set", "devices.kind=logical"), "logical"),
        (("--fix", "split"), "--fix needs knob=value"),
        (("--fix", "splitt=1-1"), "splitt"),
        (("--fix", "depth=0"), "transport.depth"),
        (("--space", "none.toml"), "none.toml"),
        (("--minutes", "0"), "minutes"),
        (("--gpu-hours", "-1"), "gpu_hours"),
        (("--plan", "--gpu-hours", "1"), "GPU-hours cannot be counted without GPUs"),
        (("--tolerance", "1"), "--tolerance"),
    ],
)
def test_a_mistake_is_one_message(
    tune: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: tuple[str, ...], says: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    code, out, err = tune("search", *arguments)
    assert (code, out) == (2, "")
    assert says in err
    assert list(tmp_path.iterdir()) == []


def test_held_knobs_are_not_varied(tune: Call, runner: Runner) -> None:
    code, _, err = tune("search", *small, "--fix", "split=2-1", "--fix", "preset=peer")
    assert code == 0, err
    configs = [request.config for request in runner.asked]
    assert {(str(c.split), c.transport.preset) for c in configs if c} == {("2-1", "peer")}


def test_a_space_of_ones_own_that_changes_training(tune: Call, runner: Runner, tmp_path: Path) -> None:
    text = 'only = true\nchanges_training = ["drafter.layers"]\n[space]\n"drafter.layers" = [2, 3]\n'
    (tmp_path / "layers.toml").write_text(text)
    code, out, _ = tune("search", "--plan", "--space", "layers.toml")
    assert code == 0
    assert "losses of such trials are not compared" in out
    code, out, err = tune("search", *small, "--space", "layers.toml", "--json")
    assert code == 0, err
    document = json.loads(out)
    assert {t["values"]["drafter.layers"] for t in document["trials"]} == {2, 3}
    assert document["changes_training"] == ["drafter.layers"]
    assert "Not comparable in loss: drafter.layers" in document["why"][-1]
    assert "Not comparable in loss" in tune("show", "dflash-study")[1]


def test_resume_needs_neither_line_nor_file(study: Path, tune: Call, runner: Runner, tmp_path: Path) -> None:
    (tmp_path / "presets.toml").unlink()
    ran = len(runner.asked)
    code, out, err = tune("resume", "st", "--json")
    assert code == 0, err
    assert len(runner.asked) == ran, "everything was done"
    assert json.loads(out)["verdict"] == "better"
    code, _, err = tune("resume", "st", "--trials", "9", "--minutes", "60")
    assert code == 0, err
    effort = json.loads((study / "effort.json").read_text())
    assert (effort["trials"], effort["minutes"], effort["seconds"]) == (9, 60.0, 1.0)
    code, _, err = tune("resume", "st", "--gpu-hours", "8")
    assert code == 2
    assert "GPU-hours cannot be counted without GPUs" in err


def test_resume_of_nothing_says_so(tune: Call) -> None:
    code, out, err = tune("resume", "nowhere")
    assert (code, out) == (2, "")
    assert "no study.json" in err


def test_export_gives_out_configurations_that_load(study: Path, tune: Call, tmp_path: Path) -> None:
    code, out, _ = tune("export", "st")
    assert code == 0
    (tmp_path / "a.toml").write_text(out)
    assert load_config(tmp_path / "a.toml").transport.preset == "peer"
    code, out, _ = tune("export", "st", "--trial", "0", "--out", "b.toml", "--json")
    assert code == 0
    assert json.loads(out)["trial"] == 0
    exported = load_config(tmp_path / "b.toml")
    assert exported.transport.preset == "host"
    assert exported.run.max_seconds == 0, "the run length is the start's, not a trial's"
    assert "# Trial 0 of a dflash-tune study: 1000 tokens/s" in (tmp_path / "b.toml").read_text()


def test_export_of_what_is_not_there(study: Path, tune: Call) -> None:
    code, out, err = tune("export", "st", "--trial", "77")
    assert (code, out) == (2, "")
    assert "no trial 77" in err


def test_export_with_nothing_to_recommend_exits_1(tune: Call) -> None:
    tune("search", *small, "--fix", "token_budget=256", "--study-dir", "oom")
    code, out, err = tune("export", "oom")
    assert (code, out) == (1, "")
    assert "--trial" in err


def test_replay_of_the_same_pace_is_the_same(study: Path, tune: Call, runner: Runner) -> None:
    before = (study / "trials/001/trial.json").read_text()
    code, out, err = tune("replay", "st", "1")
    assert code == 0, err
    assert "same: within the noise" in out
    assert "1.00 times" in out
    assert runner.asked[-1].fresh
    assert runner.asked[-1].run_path == study / "trials/001/replay-1/run"
    assert (study / "trials/001/trial.json").read_text() == before
    assert tune("replay", "st", "1")[0] == 0
    assert (study / "trials/001/replay-2/replay.json").is_file()
    assert len(json.loads(tune("show", "st", "--json")[1])["trials"]) == len(
        list((study / "trials").iterdir())
    )


def test_replay_at_another_pace_exits_1(study: Path, tune: Call, runner: Runner) -> None:
    runner.pace = 0.8
    code, out, _ = tune("replay", "st", "0", "--json")
    assert code == 1
    document = json.loads(out)
    assert document["verdict"] == "different"
    assert document["ratio"]["high"] < 1
    assert json.loads((study / "trials/000/replay-1/replay.json").read_text()) == document


def test_replay_of_a_failure_is_the_same_failure(tune: Call, runner: Runner) -> None:
    tune("search", *small, "--fix", "token_budget=256", "--study-dir", "oom")
    code, out, err = tune("replay", "oom", "0")
    assert code == 0, err
    assert "it fails as it did: out of memory" in out


def test_replay_of_what_is_not_there(study: Path, tune: Call) -> None:
    code, out, err = tune("replay", "st", "55")
    assert (code, out) == (2, "")
    assert "no trial 55" in err
