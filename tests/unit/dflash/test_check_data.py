import json
from pathlib import Path

import pytest

from dflash.check_data import check_data, describe
from dflash.contract.config import load_config
from dflash.contract.errors import DataError
from dflash.window import batches

cases = Path(__file__).parents[2] / "data/cases/data"


sizes = {"data.max_length": 256, "pipeline.token_budget": 1024, "window.tokens": 3000, "run.epochs": 2}


def configure(name: str = ""):
    path = str(cases / name) if name else ""
    return load_config(None).replacing({**sizes, "objective.anchors_per_document": 8, "data.path": path})


def test_the_document_is_json_and_its_counts_agree():
    found = check_data(configure())
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found["rows_read"] == found["rows_usable"] + len(found["refused"])
    assert sum(length["documents"] for length in found["lengths"]) == found["rows_usable"]
    assert found["epoch"]["windows"] < found["steps"] <= 2 * found["epoch"]["windows"] + 2
    assert 0 < found["anchors"]["drawn"] <= 8 * found["rows_usable"] <= found["anchors"]["candidates"]


@pytest.mark.parametrize("layout", ["flat", "packed", "padded"])
def test_fill_is_that_of_the_batches_of_the_run(layout):
    from dflash.data.loading import load_documents
    from dflash.data.tokenizer import open_tokenizer

    config = configure().replacing({"run.epochs": 1})
    documents = load_documents(config, open_tokenizer(config.target))
    stream = list(batches(documents, config, layout=layout))
    fill = check_data(config)["epoch"]["layouts"][layout]
    assert fill["batches"] == len(stream)
    assert fill["budget_fill"] == pytest.approx(documents.tokens / (1024 * len(stream)))
    processed = sum(batch.layout.processed_tokens for batch in stream)
    assert fill["row_fill"] == pytest.approx(documents.tokens / processed)


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
    assert "refused: 10 more; --json lists all" in describe(found)


def test_data_that_cannot_be_used_is_refused():
    with pytest.raises(DataError, match="no such data file"):
        check_data(configure("nothing.jsonl"))
