import json
from pathlib import Path

import pytest
import torch

import dflash.check_data
from dflash.check_data import check_data, describe, refusals_shown
from dflash.contract.config import load_config
from dflash.contract.errors import DataError
from dflash.data.loading import load_documents
from dflash.data.slices import hold_out
from dflash.data.tokenizer import open_tokenizer
from dflash.window import batches

cases = Path(__file__).parents[2] / "data/cases/data"


sizes = {"data.max_length": 256, "pipeline.token_budget": 1024, "window.tokens": 3000, "run.epochs": 2}


def configure(name: str = ""):
    path = str(cases / name) if name else ""
    return load_config(None).replacing({**sizes, "objective.anchors_per_document": 8, "data.path": path})


def few_talks(changes):
    return configure().replacing({"data.path": str(cases.parents[1] / "talks.jsonl"), **changes})


def test_the_document_is_json_and_its_counts_agree():
    found = check_data(configure())
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found["rows_read"] == found["rows_usable"] + len(found["refused"])
    assert sum(length["documents"] for length in found["lengths"]) == found["rows_usable"]
    assert found["epoch"]["windows"] < found["steps"] <= 2 * found["epoch"]["windows"] + 2
    assert 0 < found["anchors"]["drawn"] <= 8 * found["rows_usable"] <= found["anchors"]["candidates"]


@pytest.mark.parametrize("layout", ["flat", "packed", "padded"])
def test_fill_is_that_of_the_batches_of_the_run(layout):
    config = configure().replacing({"run.epochs": 1})
    documents = load_documents(config, open_tokenizer(config.target))
    stream = list(batches(documents, config, layout=layout))
    fill = check_data(config)["epoch"]["layouts"][layout]
    assert fill["batches"] == len(stream)
    assert fill["budget_fill"] == pytest.approx(documents.tokens / (1024 * len(stream)))
    processed = sum(batch.layout.processed_tokens for batch in stream)
    assert fill["row_fill"] == pytest.approx(documents.tokens / processed)


@pytest.mark.parametrize("anchors", [1, 3, 512])
def test_coverage_is_what_the_blocks_of_the_first_epoch_predict(anchors):
    """Case C023: anchors are drawn for each document, and none goes without."""
    config = few_talks({"objective.anchors_per_document": anchors, "run.epochs": 1})
    documents = load_documents(config, open_tokenizer(config.target))
    predicted, starved = 0, []
    for batch in batches(documents, config, layout="flat"):
        slots = (batch.anchors[:, None] + torch.arange(batch.labels.shape[1]))[batch.weights > 0]
        predicted += len(slots.unique())
        having = batch.document_ids[batch.anchors].unique()
        starved += [d for i, d in enumerate(batch.documents) if i not in having]
    found = check_data(config)["coverage"]
    assert starved == []
    assert found["documents"] == len(documents.items)
    assert found["predicted"] == predicted
    assert found["supervised_tokens"] == sum(int(item.loss_mask.sum()) for item in documents.items)
    assert found["share"] == pytest.approx(predicted / found["supervised_tokens"])
    assert 0 < found["least"] <= found["share"] < 1


def test_many_documents_are_looked_at_evenly(monkeypatch):
    config = few_talks({})
    whole = check_data(config)
    monkeypatch.setattr(dflash.check_data, "most_documents", 40)
    monkeypatch.setattr(dflash.check_data, "most_windows", 3)
    some = check_data(config)
    assert some["coverage"]["documents"] == 32
    assert some["coverage"]["share"] == pytest.approx(whole["coverage"]["share"], abs=0.15)
    assert (some["epoch"]["packed_windows"], some["epoch"]["windows"]) == (3, whole["epoch"]["windows"])
    for kind, fill in some["epoch"]["layouts"].items():
        assert fill["budget_fill"] == pytest.approx(whole["epoch"]["layouts"][kind]["budget_fill"], abs=0.1)


def test_what_is_held_out_is_counted_and_left_out():
    config = few_talks({"data.held_out": 0.2, "run.epochs": 1, "window.tokens": 1024})
    documents = load_documents(config, open_tokenizer(config.target))
    trained, held_out = hold_out(documents, config)
    found, whole = check_data(config), check_data(config.replacing({"data.held_out": 0.0}))
    assert (found["held_out"], whole["held_out"]) == (len(held_out.items), 0)
    assert found["tokens"] == whole["tokens"] == documents.tokens
    assert found["coverage"]["documents"] == len(trained.items) == len(documents.items) - found["held_out"]
    assert found["steps"] == found["epoch"]["windows"] < whole["steps"]
    assert found["anchors"]["candidates"] == trained.columns.candidates.sum()


def test_books_of_duplicates():
    """Case C020."""
    found = check_data(configure("c020_duplicates.jsonl"))
    assert (found["rows_read"], found["rows_usable"]) == (5, 5)
    assert (found["distinct_texts"], found["repeated_ids"]) == (2, 1)
    assert "2 different; 1 ids stand in more than one row" in describe(found)


@pytest.mark.parametrize(("too_long", "cut", "refused"), [("cut", 8, 0), ("refuse", 0, 8)])
def test_books_of_long_rows(too_long, cut, refused):
    """Case C026."""
    config = configure("c026_over_budget.jsonl").replacing(
        {"data.max_length": 512, "data.too_long": too_long}
    )
    found = check_data(config)
    assert (found["documents_cut"], found["rows_too_long"]) == (cut, refused)
    assert f"{cut} cut, {refused} refused" in describe(found)


def test_it_says_where_tokens_are_kept_and_how_much(tmp_path):
    config = configure("c020_duplicates.jsonl").replacing({"data.cache": str(tmp_path)})
    kept = check_data(config)["cache"]
    size = sum(path.stat().st_size for path in tmp_path.glob("tokens/*/*"))
    assert kept == {"directory": str(tmp_path / "tokens"), "entries": 1, "bytes": size}
    nothing = {"directory": None, "entries": 0, "bytes": 0}
    assert check_data(config.replacing({"data.cache": "off"}))["cache"] == nothing
    assert check_data(configure())["cache"] == nothing


def test_refused_rows_are_all_listed():
    found = check_data(configure("c001_roles_not_alternating.jsonl"))
    assert [(row["line"], row["id"]) for row in found["refused"]] == [
        (2, "bad-uu"),
        (3, "bad-aa"),
        (4, "bad-sys-mid"),
        (6, "tool-orphan"),
        (7, "role-unknown"),
    ]
    text = describe(found)
    assert "4 of 9 rows can be trained" in text
    assert "line 7 (role-unknown): unknown role: message 1 is by 'narrator'" in text


def test_the_sample_shows_what_is_trained():
    found = check_data(configure("c027_bom_crlf.jsonl"))
    parts = found["sample"]["parts"]
    assert [part["supervised"] for part in parts] == [False, True, False]
    assert parts[1]["text"].startswith("1, 2, 3, 4. Each number")
    assert parts[1]["text"].endswith("<|im_end|>")
    assert f"⟦{parts[1]['text']}⟧" in describe(found)


def test_control_characters_do_not_reach_the_terminal(tmp_path):
    answer = {"role": "assistant", "content": "red \x1b[31m text"}
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"messages": [{"role": "user", "content": "q"}, answer]}))
    text = describe(check_data(configure().replacing({"data.path": str(path)})))
    assert "red \\x1b[31m text" in text
    assert "\x1b" not in text


def test_long_lists_of_refused_rows_are_cut_for_people(tmp_path):
    path = tmp_path / "rows.jsonl"
    good = (cases / "c027_bom_crlf.jsonl").read_bytes()
    path.write_bytes(good + b"[]\n" * 30)
    found = check_data(configure().replacing({"data.path": str(path)}))
    assert len(found["refused"]) == 30
    some = check_data(configure().replacing({"data.path": str(path)}), most_refused=refusals_shown)
    assert some["refused"] == found["refused"][:20]
    assert describe(found) == describe(some)
    assert "refused: 10 more; --json lists all" in describe(some)


def test_data_that_cannot_be_used_is_refused():
    with pytest.raises(DataError, match="no such data file"):
        check_data(configure("nothing.jsonl"))
