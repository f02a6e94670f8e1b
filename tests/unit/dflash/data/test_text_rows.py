import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash.contract.errors import DataError
from dflash.data import text_rows
from dflash.data.text_rows import read_text_rows


def payloads(path: Path) -> list[bytes]:
    return [raw.payload for raw in read_text_rows(path)]


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)


@settings(max_examples=100, deadline=None)
@given(
    rows=st.lists(values, max_size=6),
    piece=st.integers(1, 40),
    indent=st.sampled_from([None, 1]),
    plain=st.booleans(),
)
def test_an_array_is_cut_into_its_elements_wherever_the_pieces_end(
    tmp_path_factory, rows, piece, indent, plain
):
    path = tmp_path_factory.getbasetemp() / "array.json"
    text = json.dumps(rows, indent=indent, ensure_ascii=plain)
    path.write_bytes(b"\xef\xbb\xbf" * plain + b" \n" + text.encode("utf-8", "surrogatepass") + b"\n ")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_rows, "_piece", piece)
        found = list(read_text_rows(path))
    assert [raw.line for raw in found] == list(range(1, len(rows) + 1))
    assert [json.loads(raw.payload.decode("utf-8", "surrogatepass")) for raw in found] == rows


def test_bytes_that_are_no_utf8_stay_in_their_row(tmp_path):
    path = tmp_path / "rows.json"
    path.write_bytes(b'[{"a": "caf\xe9"}, {"b": "\xc3\xa9"}]')
    assert payloads(path) == [b'{"a": "caf\xe9"}', b'{"b": "\xc3\xa9"}']


@pytest.mark.parametrize(
    ("text", "reason", "rows"),
    [
        ("[{}, {}", "past row 2: it ends without ,", 2),
        ("[{} {}]", "past row 1: , expected, found '{'", 1),
        ('[{"a": 1', "past row 0: ", 0),
        ("[{}, nope, {}]", "past row 1: Expecting value", 1),
        ("[{}] {}", "past row 1: text after the end", 1),
        ('[{}, "open]', "past row 1: Unterminated string", 1),
    ],
)
def test_an_array_that_cannot_be_followed_is_refused_where_it_breaks(tmp_path, text, reason, rows):
    path = tmp_path / "rows.json"
    path.write_text(text)
    found = []
    with pytest.raises(DataError) as caught:
        found.extend(read_text_rows(path))
    assert reason in str(caught.value)
    assert len(found) <= rows
    assert caught.value.where == str(path)


def test_a_broken_array_is_not_read_to_its_end(tmp_path, monkeypatch):
    path = tmp_path / "rows.json"
    path.write_text("[{}, nope, " + '{"a": "b"}, ' * 100_000)
    monkeypatch.setattr(text_rows, "_piece", 1024)
    read = []
    original = text_rows._Scan._read
    monkeypatch.setattr(
        text_rows._Scan, "_read", lambda scan, size: read.append(size) or original(scan, size)
    )
    with pytest.raises(DataError, match="Expecting value"):
        list(read_text_rows(path))
    assert sum(read) < 10_000


def test_lines_of_a_jsonl_file_are_rows_also_where_the_first_is_a_list(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("[]\n{}\n")
    assert payloads(path) == [b"[]\n", b"{}\n"]
