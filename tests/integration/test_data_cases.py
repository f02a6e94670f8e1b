"""Cases of data people have, trained on or refused: what the run did is what the books say."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dflash.check_data import check_data, describe
from dflash.contract.config import TrainConfig, load_config
from dflash.contract.errors import DataError
from dflash.contract.events import Probe, event_schema
from dflash.data.loading import load_documents
from dflash.data.tokenizer import open_tokenizer
from dflash.objective import block_inputs
from dflash.trainer import prepare
from dflash.window import batches
from tests.small_training import on_logical_devices

cases = Path(__file__).parents[1] / "data/cases/data"
templates = Path(__file__).parents[1] / "data/templates"


class Rows(list[dict[str, Any]]):
    def append(self, row: Any) -> None:
        super().append(dict(zip(event_schema.names, row, strict=True)))


def configure(data: Path, *changes: str) -> TrainConfig:
    sizes = ("data.max_length=256", "pipeline.token_budget=512")
    return load_config(None, (*on_logical_devices, *sizes, f"data.path={data}", *changes))


def with_tokenizer(folder: Path, template: str, **changes: str | None) -> Path:
    """The tiny tokenizer with a chat template and changes to its tokenizer_config.json."""
    shutil.copytree(cases / "tiny_bpe_tokenizer", folder)
    shutil.copyfile(cases / template, folder / "chat_template.jinja")
    path = folder / "tokenizer_config.json"
    settings = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in settings.items() if value is not None}))
    return folder


def losses(config: TrainConfig) -> list[float]:
    rows = Rows()
    prepare(config, probe=Probe(rows, "trainer")).run()
    return [json.loads(row["note"])["loss"] for row in rows if row["name"] == "window"]


def test_a_run_goes_on_past_roles_out_of_turn_and_trains_the_good_rows() -> None:
    """Case C001."""
    config = configure(cases / "c001_roles_not_alternating.jsonl", "run.max_steps=5")
    trainer = prepare(config)
    result = trainer.run()
    assert (result.steps_done, result.optimizer_updates) == (5, 5)
    found = check_data(config)
    assert found["rows_read"] == found["rows_usable"] + len(found["refused"]) == 9
    documents = load_documents(config, open_tokenizer(config.target, config.data))
    assert [document.line for document in documents.items] == [1, 5, 8, 9]


def test_strict_runs_stop_at_the_first_row_that_cannot_be_trained() -> None:
    """Case C001."""
    config = configure(cases / "c001_roles_not_alternating.jsonl", "data.strict=true")
    with pytest.raises(DataError, match="user after user") as caught:
        prepare(config)
    assert (caught.value.exit_code, str(caught.value.where).endswith("line 2 (bad-uu)")) == (2, True)


def test_a_run_on_rows_without_answers_does_not_begin(tmp_path: Path) -> None:
    """Case C002."""
    lines = (cases / "c002_empty_and_assistant_first.jsonl").read_text().splitlines()
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(lines[1:-1]))
    with pytest.raises(DataError, match="0 usable of 13 rows"):
        prepare(configure(path))


def test_a_template_with_generation_marks_and_one_without_give_the_same_training(tmp_path: Path) -> None:
    """Case C005."""
    found, path = [], tmp_path / "rows.jsonl"
    turns = [{"role": ("user", "assistant")[i % 2], "content": f"It is {i}, not {i * i}."} for i in range(20)]
    rows = [{"messages": turns[: 2 * count]} for count in range(1, 11)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for marks in ("with", "without"):
        folder = with_tokenizer(tmp_path / marks, f"c005_template_{marks}_generation.jinja")
        config = configure(path, f"target.tokenizer={folder}", "data.max_length=512")
        tokenizer = open_tokenizer(config.target)
        documents = load_documents(config, tokenizer)
        found.append([(d.ids.tolist(), d.loss_mask.tolist()) for d in documents.items])
        answers = [tokenizer.decode(d.ids[d.loss_mask]) for d in documents.items]
        assert answers == [
            "".join(turn["content"] + "<|end|>" for turn in row["messages"][1::2]) for row in rows
        ]
        document = check_data(config)
        share = sum(d.loss_mask.sum() for d in documents.items) / documents.tokens
        assert 0.1 < document["supervised_share"] == share < 0.9
        assert f"{share:.1%} supervised" in describe(document)
    assert found[0] == found[1]


def test_what_a_template_does_to_thinking_is_shown_and_counted_by_form(tmp_path: Path) -> None:
    """Case C008."""
    folder = with_tokenizer(tmp_path / "strips", "c005_template_drops_last_think.jinja")
    config = configure(cases / "c008_think_modes.jsonl", f"target.tokenizer={folder}")
    found = check_data(config)
    assert (found["rows_read"], found["rows_usable"]) == (6, 5)
    assert [(row["line"], row["id"]) for row in found["refused"]] == [(4, "unclosed-think")]
    assert "2 × the chat template left out the thinking of an answer" in found["warnings"]
    parts = [part["text"] for part in found["sample"]["parts"] if part["supervised"]]
    assert parts == ["<think>\nadd the two numbers\n</think>\n\n4<|end|>"]
    shutil.copyfile(templates / "thinks.jinja", folder / "chat_template.jinja")
    warnings = check_data(config)["warnings"]
    assert "1 × the chat template left out the thinking of an answer" in warnings
    assert "1 × the chat template put an empty think block before an answer; it is not trained" in warnings


def test_the_first_token_of_an_answer_is_an_anchor_and_the_second_its_first_label() -> None:
    """Case C007: what the target itself gives after a prompt is the anchor of the first block drafted."""
    config = configure(cases / "c020_duplicates.jsonl", "objective.anchors_per_document=512")
    tokenizer = open_tokenizer(config.target)
    documents = load_documents(config, tokenizer)
    batch = next(batches(documents, config, layout="packed"))
    block = config.drafter.block_size
    ids, places = block_inputs(batch, mask_token_id=7)
    begins = np.cumsum([0, *batch.lengths])
    for number, begin in zip(batch.documents, begins, strict=False):
        document = documents.items[number]
        answers = tokenizer.decode(document.ids[document.loss_mask])
        assert answers.endswith("<|im_end|>")
        (supervised,) = np.nonzero(document.loss_mask)
        first = int(supervised[0])  # the first token of the answer: one past the prompt
        row = batch.anchors.tolist().index(begin + first)
        inputs = ids.reshape(-1, block)[row].tolist()
        assert inputs == [document.ids[first], *[7] * (block - 1)]
        assert places.reshape(-1, block)[row].tolist() == list(range(first, first + block))
        assert batch.labels[row].tolist() == document.ids[first : first + block].tolist()
        assert (batch.weights[row] > 0).tolist() == [False, *[True] * (block - 1)]
        # By hand: slot j of anchor a counts when a + j is supervised; the answer is one stretch of n tokens.
        n = len(supervised)
        mine = (batch.anchors >= begin) & (batch.anchors < begin + len(document.ids))
        assert int(mine.sum()) == n - 1
        counted = int((batch.weights[mine] > 0).sum())
        assert counted == sum(min(block - 1, n - 1 - place) for place in range(n - 1))


def test_pad_tokens_make_no_difference_to_training(tmp_path: Path) -> None:
    """Case C010: no pad token, pad id 0, pad equal to the end token."""
    found = {}
    for name, pad in (("none", None), ("zero", "<pad>"), ("end", "<|end|>")):
        folder = with_tokenizer(tmp_path / name, "c005_template_without_generation.jinja", pad_token=pad)
        config = configure(
            cases / "c020_duplicates.jsonl",
            f"target.tokenizer={folder}",
            "run.max_steps=2",
            "data.cache=off",  # no pad token is in its key
        )
        tokenizer = open_tokenizer(config.target)
        assert tokenizer.special.pad == {"none": None, "zero": 0, "end": tokenizer.special.eos}[name]
        for document in load_documents(config, tokenizer).items:
            assert document.loss_mask[document.ids == tokenizer.special.eos].tolist() == [False, True]
        found[name] = losses(config)
    assert found["none"] == found["zero"] == found["end"]
    assert len(found["none"]) == 2
    assert all(torch.isfinite(torch.tensor(found["none"])))
