"""`dflash-profile` records any command, passes its exit code on, and reads runs back."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Call = Callable[..., tuple[int, str, str]]
Run = Callable[..., subprocess.CompletedProcess[str]]
quick = ("--gpu", "none", "--no-gil")


def strict_json(text: str) -> dict[str, object]:
    def refuse(constant: str) -> None:
        raise ValueError(constant)

    document: dict[str, object] = json.loads(text, parse_constant=refuse)
    return document


def record(call: Call, code: str, *options: str) -> tuple[int, str, str]:
    command = (sys.executable, "-S", "-c", code)
    return call("dflash-profile", "record", *quick, "--run-dir", "r", *options, "--", *command)


def test_the_exit_code_is_the_one_of_the_command(call: Call, tmp_path: Path) -> None:
    assert record(call, "raise SystemExit(7)")[0] == 7
    manifest = json.loads((tmp_path / "r/run.json").read_text())
    assert (manifest["status"], manifest["exit_code"]) == ("failed", 7)


def test_a_command_that_tells_nothing_gets_no_invented_verdict(call: Call) -> None:
    code, out, err = record(call, "pass", "--no-measure")
    assert code == 0, err
    assert "too little of the run was seen to name a cause" in out.lower()
    assert "report " in out


def test_readings_of_another_machine_can_be_replayed(call: Call, tmp_path: Path, data_dir: Path) -> None:
    file = data_dir / "cases/nvml/c070_throttled_straggler.json"
    code, _, err = record(call, "pass", "--set", f"sensors.gpu=replay:{file}")
    assert code == 0, err
    manifest = json.loads((tmp_path / "r/run.json").read_text())
    assert len(manifest["hardware"]["gpus"]) == 4
    assert manifest["samplers"]["gpu"]["status"] == "ok"


def test_json_is_alone_on_stdout_whatever_the_command_prints(call: Call) -> None:
    _, out, err = record(call, "print('chatter')", "--json")
    document = strict_json(out)
    assert "chatter" in err
    assert (document["status"], document["exit_code"], document["run"]) == ("finished", 0, "r")
    assert Path(str(document["report"])).name == "report.html"


def test_the_command_keeps_its_own_options(call: Call) -> None:
    code = "import sys; print(sys.argv[1:])"
    _, out, _ = call("dflash-profile", "record", *quick, sys.executable, "-c", code, "--json", "-h")
    assert "['--json', '-h']" in out


def test_the_time_limit_ends_the_command(call: Call) -> None:
    code, _, err = record(call, "import time; time.sleep(60)", "--time-limit", "0.5")
    assert code == 124
    assert "time limit of 0.5 s" in err


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["record"], "CMD"),
        (["record", "--", "no-such-program"], "no-such-program"),
        (["record", "--gpu", "replay:missing.json", "--", "true"], "missing.json"),
        (["record", "--gpu", "some", "--", "true"], "some"),
        (["record", "--set", "sensors.gpu=replay:missing.json", "--", "true"], "missing.json"),
        (["record", "--set", "sensors.gpus=none", "--", "true"], "did you mean 'sensors.gpu'?"),
        (["record", "--set", "pipeline.split=3-1", "--", "true"], "behind --"),
        (["record", "--set", "sensors.gpu", "--", "true"], "NAME=VALUE"),
        (["record", "--time-limit", "0", "--", "true"], "--time-limit"),
        (["diagnose", "nowhere"], "nowhere"),
        (["diagnose", "nowhere", "--json"], "nowhere"),
        (["report", "nowhere"], "nowhere"),
        (["import", "nowhere.jsonl"], "nowhere.jsonl"),
    ],
)
def test_a_mistake_is_told_in_one_message(
    call: Call, tmp_path: Path, arguments: list[str], named: str
) -> None:
    code, out, err = call("dflash-profile", *arguments)
    assert (code, out) == (2, "")
    assert named in err
    assert list(tmp_path.iterdir()) == [], "a refused request leaves nothing behind"


def test_a_recorded_run_is_diagnosed_and_reported(call: Call, tmp_path: Path) -> None:
    record(call, "pass")
    diagnosis = strict_json(call("dflash-profile", "diagnose", "r", "--json")[1])
    assert diagnosis == json.loads((tmp_path / "r/findings.json").read_text())
    code, spoken, _ = call("dflash-profile", "diagnose", "r")
    assert code == 0
    assert str(diagnosis["headline"]) in spoken
    written = strict_json(call("dflash-profile", "report", "r", "--out", "page.html", "--json")[1])
    assert written == {"run": "r", "report": "page.html"}
    assert (tmp_path / "page.html").read_text().startswith("<!DOCTYPE html>")


def test_a_run_is_diagnosed_without_torch(call: Call, run_python: Run) -> None:
    record(call, "pass")
    code = (
        "import sys\n"
        "from cli.dflash_profile import program\n"
        "try: program.run(['diagnose', 'r'])\n"
        "finally: print('torch' in sys.modules, file=sys.stderr)"
    )
    result = run_python(code)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("verdict")
    assert result.stderr.splitlines()[-1] == "False"


def test_another_trainers_metrics_become_a_run(call: Call, tmp_path: Path, data_dir: Path) -> None:
    source = str(data_dir / "cases" / "scenarios" / "s16.jsonl")
    code, out, err = call("dflash-profile", "import", source, "--run-dir", "theirs")
    assert code == 0, err
    assert "6 intervals over 12 s" in out
    assert "dflash-profile diagnose theirs" in out
    document = strict_json(call("dflash-profile", "import", source, "--run-dir", "again", "--json")[1])
    assert {key: document[key] for key in ("run", "intervals", "targets", "drafters", "bad_lines")} == {
        "run": "again", "intervals": 6, "targets": 3, "drafters": 1, "bad_lines": [],
    }  # fmt: skip
    headline = strict_json(call("dflash-profile", "diagnose", "theirs", "--json")[1])["headline"]
    assert "too little of the run was seen" in str(headline).lower()
    assert call("dflash-profile", "import", source, "--run-dir", "theirs")[0] == 2


def test_an_imported_run_is_read_like_any_other(call: Call, data_dir: Path) -> None:
    scenarios = data_dir / "cases" / "scenarios"
    for name in ("s14", "s05"):
        assert (
            call("dflash-profile", "import", str(scenarios / f"{name}.jsonl.gz"), "--run-dir", name)[0] == 0
        )
    assert call("dflash-profile", "report", "s14")[0] == 0
    code, out, err = call("dflash-profile", "compare", "s14", "s05", "--fail-above", "5%")
    assert code == 3, out + err
    code, out, err = call("dflash-profile", "live", "s14", "--once", "--json")
    assert code == 0, err
    strict_json(out)
