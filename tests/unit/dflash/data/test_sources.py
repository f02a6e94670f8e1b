import json
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import ipc, parquet

from dflash.contract.errors import DataError
from dflash.data.conversations import Conversation, RefusedRow, read_conversations
from dflash.data.sources import read_raw, source_files

cases = Path(__file__).parents[3] / "data/cases/data"


def row(number: int) -> dict[str, object]:
    turns = [
        {"role": "user", "content": f"question {number}"},
        {"role": "assistant", "content": f"answer {number}"},
    ]
    return {"id": f"row-{number}", "messages": turns}


def write_lines(path: Path, *numbers: int) -> Path:
    path.write_text("".join(json.dumps(row(n)) + "\n" for n in numbers))
    return path


def write_parquet(path: Path, *numbers: int, **options: object) -> Path:
    parquet.write_table(pa.Table.from_pylist([row(n) for n in numbers]), path, **options)
    return path


def write_arrow(path: Path, *numbers: int, form: str = "stream", rows_a_batch: int = 2) -> Path:
    schema = pa.Table.from_pylist([row(0)]).schema
    table = pa.Table.from_pylist([row(n) for n in numbers], schema)
    make = {"stream": ipc.new_stream, "file": ipc.new_file}[form]
    with pa.OSFile(str(path), "wb") as file, make(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=rows_a_batch)
    return path


def write_saved(folder: Path, *shards: tuple[int, ...]) -> Path:
    """A directory as datasets.save_to_disk leaves it."""
    folder.mkdir()
    names = [f"data-{i:05d}-of-{len(shards):05d}.arrow" for i in range(len(shards))]
    for name, numbers in zip(names, shards, strict=True):
        write_arrow(folder / name, *numbers)
    state = {"_data_files": [{"filename": name} for name in names], "_fingerprint": "0", "_split": None}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text(json.dumps({"features": {}}))
    return folder


def answers(path: Path) -> list[str]:
    rows = list(read_conversations(path))
    assert all(isinstance(row, Conversation) for row in rows), rows
    return [row.messages[-1]["content"] for row in rows]


def places(path: Path) -> list[tuple[str, int]]:
    return [(Path(raw.file).name, raw.line) for raw in read_raw(path)]


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("rows.jsonl", write_lines),
        ("rows.json", write_lines),
        (
            "rows.json",
            lambda path, *numbers: path.write_text(json.dumps([row(n) for n in numbers], indent=1)) and path,
        ),
        ("rows.parquet", write_parquet),
        (
            "rows.parquet",
            lambda path, *numbers: write_parquet(path, *numbers, row_group_size=2, compression="zstd"),
        ),
        ("rows.arrow", write_arrow),
        ("rows.arrow", lambda path, *numbers: write_arrow(path, *numbers, form="file")),
        ("rows", lambda path, *numbers: write_saved(path, numbers[:2], (), numbers[2:])),
    ],
    ids=["jsonl", "jsonl named json", "array", "parquet", "row groups", "stream", "file", "saved"],
)
def test_every_form_gives_the_same_rows(tmp_path, name, write):
    path = write(tmp_path / name, 1, 2, 3, 4, 5)
    assert answers(path) == [f"answer {n}" for n in range(1, 6)]
    assert [raw.line for raw in read_raw(path)] == ([1, 2, 1, 2, 3] if name == "rows" else [1, 2, 3, 4, 5])


def test_files_of_a_directory_are_read_by_name_and_rows_counted_in_each(tmp_path):
    write_parquet(tmp_path / "b.parquet", 3, 4)
    write_lines(tmp_path / "a.jsonl", 1, 2)
    write_arrow(tmp_path / "c.arrow", 5)
    for name in (
        "README.md",
        "_SUCCESS",
        ".hidden.jsonl",
        "dataset_infos.json",
        "cache-1.arrow",
        "answers.jsonl.manifest.json",
        "answers.jsonl.refused",
        "_old.jsonl.gz",
        "notes.txt",
    ):
        (tmp_path / name).write_text("no data")
    (tmp_path / "d.jsonl").mkdir()
    assert [path.name for path in source_files(tmp_path)] == ["a.jsonl", "b.parquet", "c.arrow"]
    assert places(tmp_path) == [
        ("a.jsonl", 1),
        ("a.jsonl", 2),
        ("b.parquet", 1),
        ("b.parquet", 2),
        ("c.arrow", 1),
    ]
    assert answers(tmp_path) == [f"answer {n}" for n in range(1, 6)]


def test_a_saved_dataset_is_read_as_its_list_says(tmp_path):
    folder = write_saved(tmp_path / "saved", (1, 2), (3,))
    write_arrow(folder / "data-00002-of-00002.arrow", 9)  # not on the list
    assert answers(folder) == ["answer 1", "answer 2", "answer 3"]
    state = json.loads((folder / "state.json").read_text())
    state["_data_files"].reverse()
    (folder / "state.json").write_text(json.dumps(state))
    assert answers(folder) == ["answer 3", "answer 1", "answer 2"]


def test_a_link_to_a_file_is_a_file(tmp_path):
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows/link.jsonl").symlink_to(write_lines(tmp_path / "elsewhere.jsonl", 1))
    assert answers(tmp_path / "rows") == ["answer 1"]


def test_some_unreadable_files_are_all_told_before_a_row_is_read(tmp_path):
    write_lines(tmp_path / "a.jsonl", 1)
    (tmp_path / "b.jsonl").symlink_to(tmp_path / "gone-b")
    (tmp_path / "c.parquet").symlink_to(tmp_path / "gone-c")
    with pytest.raises(DataError, match="2 of 3 data files cannot be read") as caught:
        next(read_raw(tmp_path))
    for told in ("b.jsonl (a link to ", "gone-b", "c.parquet", "gone-c"):
        assert told in caught.value.found
    assert (caught.value.exit_code, caught.value.where) == (2, str(tmp_path))
    assert "3 readable files" in caught.value.expected


def test_when_all_files_are_unreadable_that_is_said(tmp_path):
    for number in range(12):
        (tmp_path / f"{number:02}.arrow").symlink_to(tmp_path / f"gone-{number}")
    with pytest.raises(DataError, match="none of the 12 data files can be read") as caught:
        source_files(tmp_path)
    assert "gone-9" in caught.value.found
    assert caught.value.found.endswith("and 2 more")


def test_a_missing_shard_of_a_saved_dataset_is_named(tmp_path):
    folder = write_saved(tmp_path / "saved", (1,), (2,), (3,))
    (folder / "data-00001-of-00003.arrow").unlink()
    with pytest.raises(DataError, match="1 of 3 data files cannot be read") as caught:
        source_files(folder)
    assert "data-00001-of-00003.arrow (nothing of that name)" in caught.value.found


def spoil(name: str, data: bytes):
    def write(folder: Path) -> Path:
        (folder / name).write_bytes(data)
        return folder / name

    return write


def hold_splits(folder: Path) -> Path:
    (folder / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    for name in ("train", "test"):
        write_saved(folder / name, (1,))
    return folder


def hold_folders(folder: Path) -> Path:
    (folder / "data").mkdir()
    write_lines(folder / "data/rows.jsonl", 1)
    return folder


def hold_packed(folder: Path) -> Path:
    for name in ("a.jsonl", "b.jsonl.gz", "c.JSON.zst", "notes.txt.gz"):
        (folder / name).write_text("{}\n")
    return folder


def tear_state(folder: Path) -> Path:
    write_saved(folder / "saved", (1,))
    (folder / "saved/state.json").write_text('{"_data_files": 3}')
    return folder / "saved"


def select_rows(folder: Path) -> Path:
    write_saved(folder / "saved", (1,))
    state = json.loads((folder / "saved/state.json").read_text())
    (folder / "saved/state.json").write_text(
        json.dumps({**state, "_indices_data_files": [{"filename": "i.arrow"}]})
    )
    return folder / "saved"


@pytest.mark.parametrize(
    ("make", "message", "details"),
    [
        (lambda folder: folder / "rows.jsonl", "no such data file", "rows.jsonl"),
        (lambda folder: folder, "holds no data file", "nothing"),
        (hold_folders, "holds no data file", "subdirectories are not looked into"),
        (hold_splits, "several splits", "name one, such as"),
        (hold_packed, "packed data files are not read", "b.jsonl.gz, c.JSON.zst\n"),
        (tear_state, "list of data files cannot be read", "state.json"),
        (select_rows, "a selection from its files", "flatten_indices"),
        (spoil("rows.jsonl", b"\x1f\x8b\x08"), "gzip files are not read", "unpack or convert"),
        (spoil("rows.json", b"\x28\xb5\x2f\xfd"), "zstd files are not read", "unpack"),
        (spoil("rows.parquet", b"PAR1\x15\x04"), "Parquet file is damaged", "rows.parquet"),
        (spoil("rows.parquet", b'{"messages"'), "this is no parquet file", "begins with"),
        (spoil("rows.arrow", b""), "this is no arrow file", "an empty file"),
        (spoil("rows.arrow", b"ARROW1\0\0torn"), "Arrow file is damaged", "rows.arrow"),
        (spoil("rows.arrow", b"\xff\xff\xff\xff\x10\x00\x00\x00torn"), "Arrow file is damaged", "rows.arrow"),
    ],
)
def test_what_cannot_be_read_is_refused_at_once(tmp_path, make, message, details):
    with pytest.raises(DataError, match=message) as caught:
        list(read_conversations(make(tmp_path)))
    assert caught.value.exit_code == 2
    assert details in caught.value.render()


@pytest.mark.parametrize("write", [write_parquet, write_arrow])
def test_a_file_torn_in_the_middle_is_named_and_its_rows_are_not_half_read(tmp_path, write):
    path = write(tmp_path / "rows.table", *range(3000))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(DataError, match="is damaged") as caught:
        list(read_raw(path))
    assert caught.value.where == str(path)


@pytest.mark.parametrize("name", ["c029_good", "c029_large_string_dict", "c029_string_column"])
def test_parquet_columns_of_every_kind_are_read(name):
    rows = list(read_conversations(cases / f"{name}.parquet"))
    assert all(isinstance(row, Conversation) for row in rows)
    assert [row.id for row in rows] == ["a", "b"][: len(rows)]
    assert [message["role"] for message in rows[0].messages] == ["user", "assistant"]
    assert rows[0].messages[0]["content"] == "Count from 1 to 4."


def test_a_row_of_nulls_is_counted():
    good, null = read_conversations(cases / "c029_null_rows.parquet")
    assert isinstance(good, Conversation)
    assert isinstance(null, RefusedRow)
    assert (null.line, null.reason) == (2, "no messages: conversations is null")


def test_a_missing_column_is_told_with_the_columns_there_are():
    path = cases / "c029_missing_column.parquet"
    with pytest.raises(DataError, match="no column holds conversations") as caught:
        list(read_raw(path))
    assert (caught.value.found, caught.value.where) == ("columns id, text", str(path))


def test_a_file_without_the_column_stops_a_directory_before_its_first_row(tmp_path):
    write_lines(tmp_path / "a.jsonl", 1)
    (tmp_path / "b.parquet").write_bytes((cases / "c029_missing_column.parquet").read_bytes())
    with pytest.raises(DataError, match="no column holds conversations"):
        next(read_raw(tmp_path))


def test_no_rows_are_no_rows():
    assert list(read_raw(cases / "c029_zero_rows.parquet")) == []
