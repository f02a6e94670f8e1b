import datetime

import pyarrow as pa
import pytest
from pyarrow import parquet

from dflash.contract.errors import DataError
from dflash.data.conversations import Conversation, normalize
from dflash.data.table_rows import read_parquet

turn_type = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))


def read(path, table):
    parquet.write_table(table, path)
    return list(read_parquet(path))


def talk(text: str) -> list[dict[str, object]]:
    return [{"role": "user", "content": text}, {"role": "assistant", "content": text}]


def test_only_columns_that_mean_something_are_read(tmp_path):
    table = pa.table(
        {
            "id": [7],
            "score": [0.5],
            "messages": pa.array([talk("a")], turn_type),
            "text": ["x" * 9],
            "system": ["s"],
        }
    )
    (raw,) = read(tmp_path / "t.parquet", table)
    assert raw.payload == {"id": 7, "messages": talk("a"), "system": "s"}


def test_nulls_inside_a_row_are_things_not_given(tmp_path):
    calls = [
        {"function": {"name": "f", "arguments": {"a": 1}}},
        {"function": {"name": "g", "arguments": {"b": 2}}},
    ]
    turns = [
        {"from": "human", "value": "q"},
        {"from": "gpt", "value": None, "tool_calls": calls},
        {"role": "tool", "content": [{"type": "text", "text": "1"}]},
        {"role": "assistant", "content": [{"text": "a", "image": None}]},
    ]
    tools = [{"name": "f", "parameters": {"type": "object", "required": None}}]
    (raw,) = read(tmp_path / "t.parquet", pa.Table.from_pylist([{"conversations": turns, "tools": tools}]))
    row = normalize(raw)
    assert isinstance(row, Conversation), row
    assert [(message["role"], message["content"]) for message in row.messages] == [
        ("user", "q"),
        ("assistant", ""),
        ("tool", "1"),
        ("assistant", "a"),
    ]
    assert row.messages[1]["tool_calls"] == calls
    assert row.tools == ({"name": "f", "parameters": {"type": "object"}},)


def test_a_value_that_cannot_be_read_costs_its_own_row_only(tmp_path):
    texts = pa.array([b"fine", b"caf\xe9", b"too"]).cast(pa.binary())
    broken = pa.StringArray.from_buffers(3, *texts.buffers()[1:])
    (one, two, three) = read(tmp_path / "t.parquet", pa.table({"messages": broken}))
    assert (one.payload, three.payload) == ({"messages": "fine"}, {"messages": "too"})
    assert (two.line, two.payload, two.reason) == (2, None, "not UTF-8: byte 0xe9 in column messages")
    assert normalize(two).reason == two.reason


@pytest.mark.parametrize("identity", [datetime.date(2026, 1, 2), b"\xff", 7.5, {"a": 1}])
def test_an_id_of_any_type_is_an_id(tmp_path, identity):
    table = pa.table({"id": [identity], "messages": pa.array([talk("a")], turn_type)})
    (raw,) = read(tmp_path / "t.parquet", table)
    assert normalize(raw).id == str(identity)


def test_large_and_dictionary_encoded_texts_are_texts(tmp_path):
    words = pa.array(["human", "gpt"]).dictionary_encode()
    texts = pa.array(["q", "a"], pa.large_string())
    turns = pa.StructArray.from_arrays([words, texts], ["from", "value"])
    table = pa.table({"conversations": pa.LargeListArray.from_arrays([0, 2], turns)})
    (raw,) = read(tmp_path / "t.parquet", table)
    assert [message["content"] for message in normalize(raw).messages] == ["q", "a"]


def test_a_column_that_is_there_twice_is_refused(tmp_path):
    table = pa.table([pa.array(["x"]), pa.array(["y"])], names=["messages", "messages"])
    with pytest.raises(DataError, match="a column occurs twice"):
        read(tmp_path / "t.parquet", table)


def test_a_schema_that_cannot_be_read_is_told(tmp_path):
    path = tmp_path / "t.parquet"
    table = pa.table({"messages": pa.array([talk("a")], turn_type)})
    parquet.write_table(table, path, store_schema=False)
    path.write_bytes(path.read_bytes().replace(b"content", b"c\x80ntent"))
    with pytest.raises(DataError, match="the Parquet file is damaged") as caught:
        list(read_parquet(path))
    assert caught.value.where == str(path)


def test_rows_are_given_before_the_file_is_read_to_its_end(tmp_path):
    table = pa.table({"messages": pa.array([talk(str(n)) for n in range(5000)], turn_type)})
    path = tmp_path / "t.parquet"
    parquet.write_table(table, path, row_group_size=500)
    rows = read_parquet(path)
    assert [next(rows).line for _ in range(3)] == [1, 2, 3]
    before = pa.total_allocated_bytes()
    assert sum(1 for _ in rows) == 4997
    assert pa.total_allocated_bytes() <= before
