import itertools
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from jinja2 import TemplateError
from tokenizers import Tokenizer

from dflash.anchors import anchor_candidates
from dflash.contract.config import TrainConfig, load_config
from dflash.contract.errors import ConfigError, DataError
from dflash.data.documents import Document, Documents
from dflash.data.loading import load_documents
from dflash.data.tokenizer import ChatTokenizer, SpecialIds, open_embedded_tokenizer
from dflash.window import batches

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
    assert (cut.books.documents_cut, cut.books.rows_too_long) == (1, 0)


def test_long_rows_may_be_refused_and_are_counted(tokenizer, tmp_path):
    path = write(tmp_path / "rows.jsonl", ("q", "word " * 200), ("q", "a short answer"))
    knobs = {"data.max_length": 50, "data.too_long": "refuse"}
    total = int(load(tokenizer, path, **{"data.max_length": 1000}).lengths[0])
    books = load(tokenizer, path, **knobs).books
    (row,) = books.refused
    assert (row.line, row.reason) == (1, f"too long: {total} tokens, data.max_length is 50")
    assert (books.rows_usable, books.documents_cut, books.rows_too_long) == (1, 0, 1)
    assert books.warnings == ("1 of 2 rows are not trained: 1 × too long",)
    with pytest.raises(DataError, match="0 usable of 1 rows") as caught:
        load(tokenizer, write(path, ("q", "word " * 200)), **knobs)
    assert (caught.value.found, caught.value.expected) == ("1 × too long", "50 tokens or fewer")


def test_a_row_of_just_the_greatest_length_is_whole(tokenizer, tmp_path):
    path = write(tmp_path / "rows.jsonl", ("q", "word " * 20))
    total = int(load(tokenizer, path).lengths[0])
    for too_long in ("cut", "refuse"):
        at = load(tokenizer, path, **{"data.max_length": total, "data.too_long": too_long}).books
        assert (at.rows_usable, at.documents_cut, at.rows_too_long) == (1, 0, 0)
    assert load(tokenizer, path, **{"data.max_length": total - 1}).books.documents_cut == 1


@pytest.mark.parametrize("length", [256, 512])
def test_a_prompt_past_the_cut_is_refused_for_that(tokenizer, length):
    """Case C004."""
    books = load(tokenizer, cases / "c004_long_prompt.jsonl", **{"data.max_length": length}).books
    (row,) = books.refused
    assert (row.line, row.id) == (2, "prompt-600-words")
    assert row.reason.startswith(f"truncated: no supervised token in the first {length}, the prompt alone ")
    assert (books.rows_usable, books.rows_too_long) == (2, 1)


def test_when_all_prompts_are_past_the_cut_the_shortest_is_named(tokenizer, tmp_path):
    """Case C004."""
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
    """Case C017: two supervised tokens in a row will do for any block; of fewer it is told where they are."""
    path = cases / "c017_short_and_late_supervision.jsonl"
    sizes = {"drafter.block_size": block_size, "pipeline.token_budget": 2048, "window.tokens": 2048}
    whole = load(tokenizer, path, **sizes, **{"data.max_length": 1024})
    assert (whole.books.rows_read, whole.books.rows_usable) == (5, 5)
    first = int(np.flatnonzero(whole.items[1].loss_mask)[0])
    assert first > 250
    books = load(tokenizer, path, **sizes, **{"data.max_length": first + 1}).books
    (row,) = books.refused
    assert (row.line, row.id) == (2, "late-only")
    assert row.reason == (
        f"no anchor: block {block_size} needs 2 supervised tokens in a row, row has 1 supervised, "
        f"the last at position {first} of {first + 1}"
    )
    assert books.rows_read == books.rows_usable + 1


@pytest.mark.parametrize("too_long", ["cut", "refuse"])
@pytest.mark.parametrize("budget", [512, 4096])
def test_rows_around_the_budget(tokenizer, budget, too_long):
    """Case C026: nothing over the budget, nothing starves, and what was too long is counted."""
    roomy = {"pipeline.token_budget": 9000, "window.tokens": 9000}
    config = configure(
        cases / "c026_over_budget.jsonl",
        **{"data.max_length": budget, "pipeline.token_budget": budget, "data.too_long": too_long},
        **{"window.tokens": 4096, "run.epochs": 3},
    )
    documents = load_documents(config, tokenizer)
    books = documents.books
    assert (books.rows_read, books.rows_usable + len(books.refused)) == (10, 10)
    too_many = {"cut": books.documents_cut, "refuse": books.rows_too_long}[too_long]
    assert {"cut": books.rows_too_long, "refuse": books.documents_cut}[too_long] == 0
    whole = load(tokenizer, config.data.path, **{"data.max_length": 9000, **roomy})
    assert too_many == (whole.lengths > budget).sum() == {512: 8, 4096: 2}[budget]
    for layout in ("flat", "packed", "padded"):
        ledger = Counter()
        for batch in batches(documents, config, layout=layout):
            assert batch.tokens <= budget
            assert layout != "padded" or batch.layout.processed_tokens <= budget
            ledger.update((batch.window.epoch, number) for number in batch.documents)
        assert ledger == Counter(itertools.product(range(3), range(books.rows_usable)))


def test_a_budget_smaller_than_a_block_is_refused():
    """Case C026."""
    with pytest.raises(ConfigError, match="documents are cut shorter than one block"):
        configure(**{"data.max_length": 30, "drafter.block_size": 32, "pipeline.token_budget": 30})
    with pytest.raises(ConfigError, match="smaller than the longest document"):
        configure(**{"data.max_length": 32, "drafter.block_size": 32, "pipeline.token_budget": 30})


def test_repeated_texts_and_ids_are_told(tokenizer):
    books = load(tokenizer, cases / "c020_duplicates.jsonl").books
    assert (books.rows_read, books.rows_usable, books.distinct_texts) == (5, 5, 2)
    assert books.repeated_ids == 1
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


def test_a_table_without_rows_is_refused(tokenizer):
    """Case C029."""
    path = cases / "c029_zero_rows.parquet"
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


def test_stored_documents_are_views_and_equal_what_was_put_in(tokenizer):
    documents = load(tokenizer)
    items = documents.items
    again = Documents(tuple(items), documents.books)
    assert again.identity == documents.identity
    for name in ("lengths", "candidates", "supervised", "texts"):
        stored, counted = getattr(documents.columns, name), getattr(again.columns, name)
        assert stored.tolist() == counted.tolist()
        assert stored.dtype == counted.dtype
    assert items[-1].line == items[len(items) - 1].line == len(items)
    assert [document.line for document in items[3:9:2]] == [4, 6, 8]
    for number in (len(items), -len(items) - 1):
        with pytest.raises(IndexError):
            items[number]
    for array in (items[5].ids, items[5].loss_mask):
        assert not array.flags.owndata
        assert not array.flags.writeable
    assert items[5].ids.base is not None
    assert np.shares_memory(items[5].ids, items[5].ids)
    assert np.shares_memory(items[5].ids, items[:6][5].ids)
