import errno
import json

import pytest

from dflash.contract.errors import DFlashError, RunError
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


@pytest.mark.parametrize("bad", [b"[1]", b"\xff", b'{"number": 1}', b'{"number": "1", "row": {}}'])
def test_a_line_that_is_no_entry_costs_its_own_row_alone(tmp_path, bad):
    part = tmp_path / "out.jsonl.part"
    first, last = (json.dumps(answered(n)).encode() for n in (0, 2))
    part.write_bytes(first + b"\n" + bad + b"\n" + last + b"\n" + first + b"\n" + b'{"numb')
    file = AnswerFile(tmp_path / "out.jsonl")
    assert [number in file for number in range(3)] == [True, False, True]
    assert (file.bad_lines, file.dropped_bytes, file.tokens) == (2, 6, 6)  # row 0 twice
    file.append([answered(1)])
    file.finish()
    assert lines(file.path) == [answered(n)["row"] for n in range(3)]


def test_a_full_disk_is_told_with_what_to_do_and_gone_on_from(tmp_path, monkeypatch):
    def fail(_descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    file = AnswerFile(tmp_path / "out.jsonl")
    file.append([answered(1)])
    with monkeypatch.context() as full:
        full.setattr("dflash.regeneration.output.os.fsync", fail)
        for work in (lambda: file.append([answered(0)]), file.finish):
            with pytest.raises(DFlashError, match="No space left") as caught:
                work()
            assert caught.value.exit_code == 1
            assert "the same command goes on" in caught.value.remedy
    file.close()
    assert [path.name for path in tmp_path.iterdir()] == ["out.jsonl.part"]
    again = AnswerFile(tmp_path / "out.jsonl")
    again.finish()
    assert lines(again.path)[-1] == answered(1)["row"]


def test_one_process_at_a_time(tmp_path):
    first = AnswerFile(tmp_path / "out.jsonl")
    with pytest.raises(RunError, match="another process"):
        AnswerFile(tmp_path / "out.jsonl")
    first.close()
    AnswerFile(tmp_path / "out.jsonl").close()
