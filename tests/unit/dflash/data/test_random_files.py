"""Whatever a file holds, each row is trained or refused by line, or the file is refused: nothing else."""

import json
import re
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from dflash.contract.config import load_config
from dflash.contract.errors import DataError
from dflash.data.conversations import Conversation, RefusedRow, normalize
from dflash.data.documents import Documents
from dflash.data.loading import load_documents
from dflash.data.raw_rows import RawRow
from dflash.data.tokenizer import ChatTokenizer, open_embedded_tokenizer

talks = (Path(__file__).parents[3] / "data/talks.jsonl").read_bytes().splitlines(keepends=True)[:8]


@pytest.fixture(scope="module")
def tokenizer() -> ChatTokenizer:
    return open_embedded_tokenizer()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("random")


def check_books(path: Path, tokenizer: ChatTokenizer, lines: list[int] | None) -> Documents | None:
    """Hold the books of a file to its rows; None when the file is refused in the way users are told of.

    `lines`: those of its rows; None: nobody knows what rows it has.
    """
    knobs = {"data.path": str(path), "data.cache": "off", "data.workers": 0, "data.max_length": 64}
    try:
        documents = load_documents(load_config(None).replacing(knobs), tokenizer, lambda told: None)
    except DataError as error:
        told = re.fullmatch(r"0 usable of (\d+) rows|the data file holds no rows", error.what)
        if told and lines is not None:
            assert int(told[1] or 0) == len(lines)
        return None
    books = documents.books
    assert books.rows_read == books.rows_usable + len(books.refused)
    found = [document.line for document in documents.items] + [row.line for row in books.refused]
    assert len(found) == books.rows_read
    if lines is not None:
        assert sorted(found) == lines
    return documents


def filled_lines(data: bytes) -> list[int]:
    lines = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    return [number for number, line in enumerate(lines, start=1) if line.strip()]


@settings(max_examples=60, deadline=None)
@given(data=st.binary(max_size=120), suffix=st.sampled_from(["jsonl", "json", "parquet", "arrow", "txt"]))
def test_random_bytes(tokenizer, folder, data, suffix):
    path = folder / f"bytes.{suffix}"
    path.write_bytes(data)
    assert check_books(path, tokenizer, filled_lines(data) if suffix == "jsonl" else None) is None


@settings(max_examples=60, deadline=None)
@given(
    places=st.lists(
        st.tuples(st.integers(0, 7), st.floats(0, 1), st.binary(max_size=3)), min_size=1, max_size=12
    ),
    mark=st.sampled_from([b"", b"\xef\xbb\xbf"]),
)
def test_lines_with_bytes_of_chance_in_them(tokenizer, folder, places, mark):
    lines = list(talks)
    for number, share, junk in places:
        at = int(share * len(lines[number]))
        lines[number] = lines[number][:at] + junk + lines[number][at + len(junk) :]
    data = mark + b"".join(lines)
    path = folder / "mutated.jsonl"
    path.write_bytes(data)
    check_books(path, tokenizer, filled_lines(data))


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6)
anything = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
words = st.sampled_from(["why?", "so", "<think>", "</think>", "<|im_end|>", " ", "ünï\n", "\ud83d"])
texts = st.lists(words, max_size=4).map("".join)
contents = (
    texts
    | st.lists(texts | st.fixed_dictionaries({"type": st.just("text"), "text": texts}), max_size=2)
    | anything
)
turns = st.fixed_dictionaries(
    {},
    optional={
        "role": st.sampled_from(["user", "assistant", "system", "tool", "Assistant", "bing"]) | anything,
        "from": st.sampled_from(["human", "gpt"]),
        "content": contents,
        "value": contents,
        "tool_calls": st.lists(st.fixed_dictionaries({"name": texts, "arguments": anything}), max_size=2)
        | anything,
        "reasoning_content": texts | anything,
    },
)
good = st.tuples(texts, texts).map(
    lambda pair: [
        {"role": "user", "content": pair[0]},
        {"role": "assistant", "content": "so be it " + pair[1]},
    ]
)
rows = st.fixed_dictionaries(
    {},
    optional={
        "id": anything,
        "messages": good | st.lists(turns, max_size=4) | anything,
        "conversations": good | st.lists(turns, max_size=3).map(json.dumps) | anything,
        "tools": st.lists(st.dictionaries(texts, anything, max_size=2), max_size=2) | anything,
    },
)

# As they should be, mostly: among rows drawn at random hardly one would be trained.
sound_rows = st.fixed_dictionaries(
    {"messages": good},
    optional={"id": scalars, "tools": st.lists(st.fixed_dictionaries({"name": words}), max_size=2)},
)


@settings(max_examples=80, deadline=None)
@given(found=st.lists(sound_rows | rows | anything, min_size=1, max_size=6), array=st.booleans())
def test_rows_of_any_shape(tokenizer, folder, found, array):
    path = folder / ("rows.json" if array else "rows.jsonl")
    path.write_text(json.dumps(found) if array else "".join(json.dumps(row) + "\n" for row in found))
    check_books(path, tokenizer, list(range(1, len(found) + 1)))


@settings(max_examples=100, deadline=None)
@given(payload=rows)
def test_columns_of_any_shape(payload):
    row = normalize(RawRow(file="made", line=3, payload=payload))
    assert isinstance(row, Conversation | RefusedRow)
    assert (row.file, row.line) == ("made", 3)


@settings(max_examples=40, deadline=None)
@given(
    found=st.lists(good | st.none(), min_size=1, max_size=5), at=st.floats(0, 1), junk=st.binary(max_size=4)
)
def test_tables_with_bytes_of_chance_in_them(tokenizer, folder, found, at, junk):
    path = folder / "rows.parquet"
    clean = [json.loads(json.dumps(turns).replace("\\ud83d", "?")) for turns in found]
    kind = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))
    parquet.write_table(pa.table({"messages": pa.array(clean, kind)}), path)
    data = path.read_bytes()
    place = int(at * len(data))
    path.write_bytes(data[:place] + junk + data[place + len(junk) :])
    check_books(path, tokenizer, None if junk else list(range(1, len(found) + 1)))
