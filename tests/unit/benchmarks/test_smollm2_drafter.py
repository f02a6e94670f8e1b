from pathlib import Path

import pytest

from benchmarks.smollm2_drafter import compare, full, join_parts, tiny, write_config
from benchmarks.smollm2_prompts import make_prompts
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
