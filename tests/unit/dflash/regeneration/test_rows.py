import json

from dflash.data.conversations import normalize
from dflash.data.sources import RawRow
from dflash.regeneration.answers import Answer
from dflash.regeneration.rows import RowInProgress


def begin(*turns, keep_cut=False, **more):
    messages = [{"role": role, "content": content} for role, content in turns]
    raw = RawRow(file="f", line=3, payload=json.dumps({"messages": messages, **more}).encode())
    return RowInProgress(2, normalize(raw, prompts=True), keep_cut)


def said(row):
    return [(m["role"], m["content"]) for m in row.entry()["row"]["messages"]]


two_turns = (("system", "s"), ("user", "a"), ("assistant", "old"), ("user", "b"))


def test_turns_are_answered_one_by_one_with_the_new_history():
    row = begin(*two_turns, id=7)
    first = row.request()
    assert [m["content"] for m in first.messages] == ["s", "a"]
    assert (first.row, first.turn) == (2, 0)
    row.take(Answer(content="A", tokens=2))
    second = row.request()
    assert [m["content"] for m in second.messages] == ["s", "a", "A", "b"]
    assert second.turn == 1
    row.take(Answer(content="B", tokens=3))
    assert row.ended
    assert said(row) == [
        ("system", "s"),
        ("user", "a"),
        ("assistant", "A"),
        ("user", "b"),
        ("assistant", "B"),
    ]
    assert row.entry()["row"]["id"] == "7"
    assert row.entry()["row"]["regenerated"] == {
        "file": "f",
        "line": 3,
        "finish": ["stop", "stop"],
        "tokens": [2, 3],
    }
    assert row.entry()["tokens"] == 5


def test_a_cut_answer_is_left_out_with_its_turn():
    row = begin(*two_turns)
    row.request()
    row.take(Answer(content="A", tokens=2))
    row.request()
    row.take(Answer(content="B…", tokens=9, finish="length"))
    assert row.ended
    assert said(row)[-1] == ("assistant", "A")
    assert row.entry()["row"]["regenerated"]["ended_early"] == "cut off: answer 2 has no end after 9 tokens"


def test_a_row_without_a_whole_answer_is_refused_by_reason():
    for answer, reason in (
        (Answer(content="A…", tokens=9, finish="length"), "cut off: answer 1 has no end after 9 tokens"),
        (Answer(content=" \n", tokens=2), "empty answer: answer 1"),
        (Answer(finish="refused", reason="too long: it is"), "too long: it is"),
    ):
        row = begin(("user", "a"))
        row.request()
        row.take(answer)
        assert row.ended
        assert row.entry()["refused"] == {"file": "f", "line": 3, "id": None, "reason": reason}


def test_a_cut_answer_may_be_kept_as_the_last():
    row = begin(*two_turns, keep_cut=True)
    row.request()
    row.take(Answer(content="A…", tokens=9, finish="length"))
    assert row.ended
    assert said(row)[-1] == ("assistant", "A…")
    assert row.entry()["row"]["regenerated"]["finish"] == ["length"]
    assert row.entry()["row"]["regenerated"]["ended_early"] == "cut off: answer 1"


def test_thinking_alone_is_no_answer():
    for keep in (False, True):
        for finish, reason in (("stop", "empty answer: answer 1 is thinking alone"), ("length", "cut off: ")):
            row = begin(("user", "a"), keep_cut=keep)
            row.request()
            row.take(Answer(content=" ", reasoning="hm", tokens=4, finish=finish))
            assert row.ended
            assert row.entry()["refused"]["reason"].startswith(reason)


def test_thinking_that_comes_apart_stays_apart():
    row = begin(("user", "a"))
    row.request()
    row.take(Answer(content="A", reasoning="hm", tokens=None))
    assert row.entry()["row"]["messages"][-1] == {
        "role": "assistant",
        "content": "A",
        "reasoning_content": "hm",
    }
    assert row.entry()["tokens"] == 0
