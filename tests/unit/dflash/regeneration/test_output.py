import json

import pytest

from dflash.contract.errors import RunError
from dflash.regeneration.output import AnswerFile


def answered(number):
    return {"number": number, "tokens": 3, "row": {"messages": [f"é{number}\u2028"]}}


def refused(number):
    return {"number": number, "refused": {"file": "f", "line": number + 1, "id": None, "reason": "kind: why"}}


entries = [answered(4), refused(2), answered(0), answered(3), refused(1)]


def lines(path):
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]


def test_rows_end_up_in_the_order_of_the_data(tmp_path):
    file = AnswerFile(tmp_path / "deep/out.jsonl")
    file.append(entries[:3])
    file.append(entries[3:])
    assert (len(file), file.tokens) == (5, 9)
    assert dict(file.kinds) == {"answered": 3, "kind": 2}
    file.finish()
    assert lines(file.path) == [answered(n)["row"] for n in (0, 3, 4)]
    assert lines(file.refused_path) == [refused(n)["refused"] for n in (1, 2)]
    assert sorted(p.name for p in file.path.parent.iterdir()) == ["out.jsonl", "out.jsonl.refused"]


def test_a_kill_at_any_byte_loses_at_most_the_line_it_tore(tmp_path):
    whole = AnswerFile(tmp_path / "whole.jsonl")
    whole.append(entries)
    content = whole.part.read_bytes()
    whole.finish()
    expected = whole.path.read_bytes(), whole.refused_path.read_bytes()
    ends = [i + 1 for i, byte in enumerate(content) if byte == 10]
    for size in sorted({*range(0, len(content), 23), *ends, *(end - 1 for end in ends)}):
        path = tmp_path / "out.jsonl"
        path.with_name("out.jsonl.part").write_bytes(content[:size])
        file = AnswerFile(path)
        assert len(file) == content[:size].count(b"\n")
        assert file.dropped_bytes == size - (content[:size].rfind(b"\n") + 1)
        file.append(entry for entry in entries if entry["number"] not in file)
        assert file.part.read_bytes() == content
        file.finish()
        assert (path.read_bytes(), file.refused_path.read_bytes()) == expected


def test_a_line_that_is_no_entry_ends_what_is_taken_in(tmp_path):
    part = tmp_path / "out.jsonl.part"
    part.write_text(json.dumps(answered(0)) + "\n[1]\n" + json.dumps(answered(1)) + "\n")
    file = AnswerFile(tmp_path / "out.jsonl")
    assert 0 in file
    assert 1 not in file
    assert part.read_text().count("\n") == 1
    file.close()


def test_one_process_at_a_time(tmp_path):
    first = AnswerFile(tmp_path / "out.jsonl")
    with pytest.raises(RunError, match="another process"):
        AnswerFile(tmp_path / "out.jsonl")
    first.close()
    AnswerFile(tmp_path / "out.jsonl").close()
