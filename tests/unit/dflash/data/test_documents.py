import json
from pathlib import Path

import numpy as np
import pytest
from jinja2 import TemplateError
from tokenizers import Tokenizer

from dflash.anchors import anchor_candidates
from dflash.contract.config import TrainConfig, load_config
from dflash.contract.errors import DataError
from dflash.data.documents import Document, Documents
from dflash.data.loading import load_documents
from dflash.data.tokenizer import ChatTokenizer, SpecialIds, open_embedded_tokenizer

cases = Path(__file__).parents[3] / "data/cases/data"


@pytest.fixture(scope="module")
def tokenizer() -> ChatTokenizer:
    return open_embedded_tokenizer()


def configure(path: Path | str = "", **knobs: object) -> TrainConfig:
    sizes = {"data.max_length": 256, "pipeline.token_budget": 1024, "drafter.block_size": 8}
    return load_config(None).replacing({**sizes, "data.path": str(path), **knobs})


def load(tokenizer: ChatTokenizer, path: Path | str = "", **knobs: object) -> Documents:
    return load_documents(configure(path, **knobs), tokenizer)


def write(path: Path, *pairs: tuple[str, str]) -> Path:
    rows = [
        {"messages": [{"role": "user", "content": q}, {"role": "assistant", "content": a}]} for q, a in pairs
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("path", ["", *(p.name for p in sorted(cases.glob("*.jsonl")))])
def test_books_balance_and_every_document_has_an_anchor(tokenizer, path):
    documents = load(tokenizer, cases / path if path else "")
    books = documents.books
    assert books.rows_read == books.rows_usable + len(books.refused)
    assert books.rows_usable == len(documents.items) > 0
    assert 0 < books.supervised_share < 1
    for document in documents.items:
        assert len(document.ids) == len(document.loss_mask) <= 256
        assert len(anchor_candidates(document.loss_mask)) > 0


def test_documents_hold_ids_masks_and_their_place(tokenizer):
    path = cases / "c015_mixed_types.jsonl"
    documents = load(tokenizer, path)
    assert [(document.file, document.line) for document in documents.items] == [
        (str(path), line) for line in (1, 2, 3, 7, 8, 9)
    ]
    first = documents.items[0]
    assert (first.ids.dtype, first.loss_mask.dtype) == (np.int32, np.bool_)
    assert tokenizer.decode(first.ids[first.loss_mask]) == "And the content is a string.<|im_end|>"
    assert documents.lengths.tolist() == [len(document.ids) for document in documents.items]
    assert documents.tokens == sum(documents.lengths)


def test_the_embedded_text_is_all_usable(tokenizer):
    books = load(tokenizer).books
    assert not books.refused
    assert books.distinct_texts == books.rows_usable > 600
    assert 0.5 < books.supervised_share < 0.95


def test_long_documents_are_cut_and_counted(tokenizer, tmp_path):
    path = write(tmp_path / "rows.jsonl", ("q", "word " * 200), ("q", "a short answer"))
    whole = load(tokenizer, path, **{"data.max_length": 1000})
    cut = load(tokenizer, path, **{"data.max_length": 50})
    assert len(cut.items[0].ids) == 50
    assert cut.items[0].ids.tolist() == whole.items[0].ids[:50].tolist()
    assert cut.items[0].loss_mask.tolist() == whole.items[0].loss_mask[:50].tolist()
    assert cut.books.warnings == ("1 × a document was cut to 50 tokens",)


def test_a_prompt_past_the_cut_is_refused_for_that(tokenizer):
    books = load(tokenizer, cases / "c004_long_prompt.jsonl").books
    (row,) = books.refused
    assert (row.line, row.id) == (2, "prompt-600-words")
    assert row.reason.startswith("truncated: no supervised token in the first 256")
    assert books.rows_usable == 2


def test_when_all_prompts_are_past_the_cut_the_shortest_is_named(tokenizer, tmp_path):
    path = write(tmp_path / "rows.jsonl", ("why " * 400, "so"), ("why " * 300, "so"), ("why " * 500, "so"))
    shortest = int(np.flatnonzero(load(tokenizer, path, **{"data.max_length": 900}).items[1].loss_mask)[0])
    with pytest.raises(DataError, match="0 usable of 3 rows") as caught:
        load(tokenizer, path)
    assert caught.value.found == "3 × truncated"
    assert "256" in caught.value.expected
    assert f"past {shortest}," in caught.value.remedy


def test_rows_without_a_place_for_an_anchor_are_refused_with_their_numbers(tokenizer, tmp_path):
    prompt = "x " * 10
    path = write(tmp_path / "rows.jsonl", (prompt, "some answer"), ("q", "another"))
    first = int(np.flatnonzero(load(tokenizer, path).items[0].loss_mask)[0])
    books = load(tokenizer, path, **{"data.max_length": first + 1}).books
    (row,) = books.refused
    assert row.reason == (
        f"no anchor: block 8 needs 2 supervised tokens in a row, row has 1 supervised, "
        f"the last at position {first} of {first + 1}"
    )


@pytest.mark.parametrize("block_size", [4, 8, 16])
def test_short_and_late_answers(tokenizer, block_size):
    path = cases / "c017_short_and_late_supervision.jsonl"
    books = load(tokenizer, path, **{"drafter.block_size": block_size, "data.max_length": 1024}).books
    assert (books.rows_read, books.rows_usable) == (5, 5)


def test_repeated_texts_and_ids_are_told(tokenizer):
    books = load(tokenizer, cases / "c020_duplicates.jsonl").books
    assert (books.rows_read, books.rows_usable, books.distinct_texts) == (5, 5, 2)
    assert "1 × an id occurs in more than one row; every row is trained" in books.warnings
    assert "5 documents hold 2 different texts; every row is trained" in books.warnings


def test_warnings_name_the_common_reasons(tokenizer):
    books = load(tokenizer, cases / "c001_roles_not_alternating.jsonl").books
    assert books.warnings == ("5 of 9 rows are not trained: 4 × roles out of turn; 1 × unknown role",)


def test_rows_with_warnings_are_counted(tokenizer):
    books = load(tokenizer, cases / "c011_sharegpt_and_parts.jsonl").books
    assert "1 × messages and conversations differ; messages was used" in books.warnings


def test_strict_stops_at_the_first_bad_row(tokenizer):
    path = cases / "c001_roles_not_alternating.jsonl"
    with pytest.raises(DataError, match="user after user") as caught:
        load(tokenizer, path, **{"data.strict": True})
    assert caught.value.where == f"{path}, line 2 (bad-uu)"
    assert len(load(tokenizer, **{"data.strict": True}).items) > 600


def test_a_conversation_that_the_template_refuses_is_a_refused_row(tmp_path):
    def apply(messages, prompt):
        if messages[0]["content"] == "bad":
            raise TemplateError("no such role")
        return "".join(f"<|{m['role']}|>{m['content']}<|end|>" for m in messages)

    backend = Tokenizer.from_file(str(cases / "tiny_bpe_tokenizer/tokenizer.json"))
    special = SpecialIds(mask=None, pad=0, eos=1, unk=None)
    path = write(tmp_path / "rows.jsonl", ("good", "an answer"), ("bad", "an answer"))
    (row,) = load(ChatTokenizer("tiny", backend, apply, special), path).books.refused
    assert (row.line, row.reason) == (2, "refused by the chat template: no such role")


@pytest.mark.parametrize("text", ["", "\n \r\n"])
def test_a_file_without_rows_is_refused(tokenizer, tmp_path, text):
    path = tmp_path / "rows.jsonl"
    path.write_text(text)
    with pytest.raises(DataError, match="holds no rows") as caught:
        load(tokenizer, path)
    assert (caught.value.exit_code, caught.value.where) == (2, str(path))


def test_a_file_of_bad_rows_only_says_zero_usable(tokenizer, tmp_path):
    lines = (cases / "c002_empty_and_assistant_first.jsonl").read_text().splitlines()
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(lines[1:-1]))
    with pytest.raises(DataError, match="0 usable of 13 rows") as caught:
        load(tokenizer, path)
    assert "3 × not an object" in caught.value.found


def identity_of(*documents):
    items = tuple(
        Document(ids=np.array(ids, np.int32), loss_mask=np.array(mask, np.bool_), file="made", line=line)
        for line, (ids, mask) in enumerate(documents, start=1)
    )
    return Documents(items, books=None).identity


def test_documents_are_known_by_every_token_mask_end_and_by_their_order():
    first, second = ([5, 6, 7], [0, 1, 1]), ([8, 9, 7], [0, 1, 1])
    different = [
        identity_of(first, second),
        identity_of(second, first),
        identity_of(first, ([8, 9, 6], [0, 1, 1])),
        identity_of(first, ([8, 9, 7], [1, 1, 1])),
        identity_of(([5, 6, 7, 8], [0, 1, 1, 0]), ([9, 7], [1, 1])),
        identity_of(first),
    ]
    assert len(set(different)) == len(different)
    assert identity_of(first, second) == different[0]
    assert different[0].startswith("2 documents, 6 tokens, ")
