import json
from pathlib import Path

import pytest

from dflash.data.conversations import Conversation, RefusedRow, normalize, read_conversations
from dflash.data.sources import RawRow

cases = Path(__file__).parents[3] / "data/cases/data"


def read(path: Path) -> list[Conversation | RefusedRow]:
    return list(read_conversations(path))


def reasons(path: Path) -> dict[int, str]:
    return {row.line: row.reason for row in read(path) if isinstance(row, RefusedRow)}


def read_row(tmp_path: Path, row: object) -> Conversation | RefusedRow:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row) + "\n")
    (only,) = read(path)
    return only


def test_roles_out_of_turn_are_refused_by_line_id_and_reason():
    path = cases / "c001_roles_not_alternating.jsonl"
    rows = read(path)
    assert len(rows) == 9
    assert [row.id for row in rows if isinstance(row, Conversation)] == [
        "ok-001",
        "tool-ok",
        "role-case",
        "ok-002",
    ]
    assert reasons(path) == {
        2: "roles out of turn: user after user, message 2",
        3: "roles out of turn: assistant after assistant, message 3",
        4: "roles out of turn: system after user, message 2",
        6: "roles out of turn: tool at the beginning, message 1",
        7: "unknown role: message 1 is by 'narrator'",
    }


def test_roles_are_read_without_regard_to_case():
    rows = {row.id: row for row in read(cases / "c001_roles_not_alternating.jsonl")}
    assert [message["role"] for message in rows["role-case"].messages] == ["user", "assistant"]


def test_empty_things_are_accounted_for():
    path = cases / "c002_empty_and_assistant_first.jsonl"
    assert [row.id for row in read(path) if isinstance(row, Conversation)] == ["ok-001", "ok-002"]
    assert {line: reason.partition(":")[0] for line, reason in reasons(path).items()} == {
        2: "no messages",
        3: "neither messages nor conversations",
        4: "no messages",
        5: "roles out of turn",
        6: "no supervised token",
        7: "no supervised token",
        8: "empty answer",
        9: "no text",
        10: "empty answer",
        11: "neither messages nor conversations",
        12: "not an object",
        13: "not an object",
        14: "not an object",
    }


def test_shapes_of_other_people_are_read():
    rows = {row.id: row for row in read(cases / "c011_sharegpt_and_parts.jsonl")}
    answers = {i: row.messages[-1]["content"] for i, row in rows.items() if isinstance(row, Conversation)}
    assert answers == {
        "sg-1": "Yes: these rows use from and value instead of role and content.",
        "sg-sys": "Hello.",
        "msgs": "Then read it from messages.",
        "parts": "Join the text parts, in order.",
        "both-keys": "from messages",
    }
    assert rows["both-keys"].warnings == ("messages and conversations differ; messages was used",)
    assert rows["sg-bing"].reason == "unknown role: message 1 is by 'bing'"
    assert rows["image-part"].reason == "not only text: message 1 has a part of type 'image'"
    assert "prompt, completion" in rows["prompt-completion"].reason


def test_mixed_types_are_refused_by_their_own_line():
    path = cases / "c015_mixed_types.jsonl"
    assert reasons(path) == {
        4: "messages are not a list: conversations is a string that is no JSON; "
        "write a list of turns with role and content",
        5: "messages are not a list: conversations is an object",
        6: "message is not an object: message 1 is a list",
    }
    rows = read(path)
    assert [row.id for row in rows] == ["1", "two", "3", "4", "5", "6", "7", "8", "ok-009"]
    assert rows[2].messages[0]["content"] == "listofstrings"


def test_unicode_separators_do_not_end_a_line():
    rows = read(cases / "c027_unicode.jsonl")
    assert [row.line for row in rows] == [1, 2, 3, 4, 5, 6, 7]
    assert all(isinstance(row, Conversation) for row in rows)
    assert "\x00 tail" in rows[4].messages[1]["content"]
    assert "\x85" in rows[5].messages[1]["content"]


def test_a_byte_order_mark_and_crlf_are_no_part_of_the_data():
    rows = read(cases / "c027_bom_crlf.jsonl")
    assert [row.id for row in rows] == ["ok-001", "ok-002", "ok-003", "ok-004"]
    assert all(isinstance(row, Conversation) for row in rows)


def test_bad_bytes_and_half_characters_are_refused_by_line():
    assert reasons(cases / "c027_latin1_bytes.jsonl") == {2: "not UTF-8: byte 0xe9 at 61"}
    assert reasons(cases / "c027_lone_surrogate.jsonl") == {1: r"lone surrogate: \ud83d is half a character"}


def test_a_surrogate_pair_is_one_character(tmp_path):
    path = tmp_path / "pair.jsonl"
    path.write_text(
        r'{"messages":[{"role":"user","content":"\ud83d\ude00"},{"role":"assistant","content":"a"}]}'
    )
    (row,) = read(path)
    assert row.messages[0]["content"] == "😀"


@pytest.mark.parametrize("line", ["{", '{"a": 1} {"b": 2}', "[" * 100_000, "1" * 5000, "nul"])
def test_lines_that_are_no_json_are_refused(tmp_path, line):
    path = tmp_path / "rows.jsonl"
    path.write_text(line + "\n")
    assert reasons(path)[1].startswith("not JSON:")


def test_a_question_without_an_answer_at_the_end_is_left_out(tmp_path):
    turns = [{"role": r, "content": r} for r in ("system", "user", "assistant", "user")]
    row = read_row(tmp_path, {"messages": turns})
    assert [message["role"] for message in row.messages] == ["system", "user", "assistant"]


def test_what_templates_read_is_passed_on_and_the_rest_is_not(tmp_path):
    calls = [{"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}]
    turns = [
        {"role": "user", "content": "q", "weight": 1},
        {"role": "assistant", "content": None, "tool_calls": calls, "reasoning_content": "why"},
        {"role": "tool", "content": "1", "tool_call_id": "x"},
        {"role": "assistant", "content": "a", "tool_calls": None},
    ]
    assert read_row(tmp_path, {"messages": turns}).messages == (
        {"role": "user", "content": "q"},
        {"role": "assistant", "tool_calls": calls, "reasoning_content": "why", "content": ""},
        {"role": "tool", "tool_call_id": "x", "content": "1"},
        {"role": "assistant", "content": "a"},
    )


def test_a_system_text_beside_the_turns_goes_before_them(tmp_path):
    turns = [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]
    first = {"from": "system", "value": "s"}
    plain = read_row(tmp_path, {"conversations": [first, *turns]})
    for row in ({"system": "s", "conversations": turns}, {"system": "s", "conversations": [first, *turns]}):
        assert read_row(tmp_path, row) == plain
    assert [m["role"] for m in plain.messages] == ["system", "user", "assistant"]
    for nothing in ("", " ", None):
        assert len(read_row(tmp_path, {"system": nothing, "conversations": turns}).messages) == 2
    other = read_row(tmp_path, {"system": "t", "conversations": [first, *turns]})
    assert (other.messages, len(other.warnings)) == (plain.messages, 1)
    strange = read_row(tmp_path, {"system": {"a": 1}, "conversations": turns})
    assert (strange.messages, len(strange.warnings)) == (plain.messages[1:], 1)
    raw = RawRow(file="f", line=1, payload={"system": "s", "conversations": turns})
    assert [m["role"] for m in normalize(raw, prompts=True).messages] == ["system", "user", "assistant"]


def test_answers_of_weight_0_are_not_trained(tmp_path):
    def row(*weights):
        turns = []
        for weight in weights:
            given = {} if weight is None else {"weight": weight}
            turns += [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a", **given}]
        return read_row(tmp_path, {"messages": turns})

    assert (row(0, 1, 0, None).untrained, row(1, None).untrained) == ((1, 5), ())
    cut = row(0.0, 1, 0)
    assert (cut.untrained, len(cut.messages), cut.warnings) == ((1,), 4, ())
    assert row(0, 0).reason == "no supervised token: every answer has weight 0"
    odd = row(0.5, "0")
    assert (odd.untrained, len(odd.warnings)) == ((), 2)


def test_thinking_that_is_not_closed_is_refused_by_line_and_id():
    rows = list(read(cases / "c008_think_modes.jsonl"))
    (refused,) = (row for row in rows if isinstance(row, RefusedRow))
    assert (refused.line, refused.id, len(rows)) == (4, "unclosed-think", 6)
    assert refused.reason == "unclosed thinking: message 2 begins with <think> and has no </think>"


def test_thinking_is_read_by_all_its_names_and_may_be_spoken_of(tmp_path):
    for name in ("reasoning_content", "reasoning", "thinking"):
        turns = [
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": "Write <think> and never close it.", name: " why\n"},
        ]
        assert read_row(tmp_path, {"messages": turns}).messages[1]["reasoning_content"] == " why\n"
        turns[1][name] = " \n"
        assert "reasoning_content" not in read_row(tmp_path, {"messages": turns}).messages[1]


def test_turns_may_be_json_text_or_lists_side_by_side(tmp_path):
    turns = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    side_by_side = {"from": ["human", "gpt"], "value": ["q", "a"]}
    for value in (turns, json.dumps(turns), side_by_side, json.dumps(side_by_side)):
        assert read_row(tmp_path, {"conversations": value}).messages == tuple(turns)
    for value, reason in (
        ("no list", "conversations is a string that is no JSON; write a list of turns with role and content"),
        ('{"role": "user"}', "conversations is an object"),
        ({"from": ["human", "gpt"], "value": ["q"]}, "conversations is an object"),
        (3.5, "conversations is a number"),
    ):
        assert read_row(tmp_path, {"conversations": value}).reason == f"messages are not a list: {reason}"


def test_half_a_character_in_a_json_text_is_refused(tmp_path):
    text = r'[{"role":"user","content":"q"},{"role":"assistant","content":"\ud83d"}]'
    assert read_row(tmp_path, {"messages": text}).reason.startswith("lone surrogate: messages is a string: ")


def test_tools_are_objects_or_json_text_of_them(tmp_path):
    turns = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    for value in (tools, json.dumps(tools)):
        assert read_row(tmp_path, {"messages": turns, "tools": value}).tools == tuple(tools)
    for value in (None, [], "", "[]"):
        assert read_row(tmp_path, {"messages": turns, "tools": value}).tools == ()
    for value in ("f", {"name": "f"}, ["f"], 3):
        assert read_row(tmp_path, {"messages": turns, "tools": value}).reason.startswith(
            ("tools not understood: tools are not a list of objects", "not JSON: tools: ")
        )


@pytest.mark.parametrize(
    ("calls", "reason"),
    [
        (["f()"], "tool call not understood: message 2: a call is not an object"),
        ([{"function": {"arguments": {}}}], "tool call not understood: message 2: a call names no function"),
        (
            [{"name": "f", "arguments": [1]}],
            "tool call not understood: message 2: the arguments of f are no object",
        ),
        ([{"name": "f", "arguments": "{torn"}], "not JSON: arguments in message 2: "),
        ({"name": "f"}, "tool call not understood: message 2: tool_calls are not a list"),
    ],
)
def test_calls_that_are_none_are_refused(tmp_path, calls, reason):
    turns = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "", "tool_calls": calls}]
    assert read_row(tmp_path, {"messages": turns}).reason.startswith(reason)


@pytest.mark.parametrize("key", ["reasoning_content", "name", "tool_call_id"])
def test_a_text_of_another_type_is_refused(tmp_path, key):
    turns = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a", key: ["x"]}]
    assert read_row(tmp_path, {"messages": turns}).reason == f"no text: {key} of message 2 is a list"


def test_tool_results_that_nobody_asked_for_are_refused(tmp_path):
    turns = [{"role": r, "content": r} for r in ("user", "assistant", "tool", "assistant")]
    assert "called none" in read_row(tmp_path, {"messages": turns}).reason


def prompts_of(*turns: dict[str, object]) -> Conversation | RefusedRow:
    payload = json.dumps({"messages": turns}).encode()
    return normalize(RawRow(file="f", line=1, payload=payload), prompts=True)


def test_prompts_keep_what_users_say_and_leave_every_answer_open():
    system, first, second = (
        {"role": r, "content": c} for r, c in (("system", "s"), ("user", "a"), ("user", "b"))
    )
    old = {"role": "gpt", "content": None, "tool_calls": [{}]}  # whatever it is: it is not read
    open_answer = {"role": "assistant", "content": ""}
    assert prompts_of(first).messages == (first, open_answer)
    assert prompts_of(system, first, old, second).messages == (
        system,
        first,
        open_answer,
        second,
        open_answer,
    )


def test_prompts_that_cannot_be_answered_anew_are_refused():
    user, answer = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}
    assert prompts_of({"role": "system", "content": "s"}).reason.startswith("no prompt")
    assert prompts_of(answer, user).reason.startswith("roles out of turn")
    call = {"role": "gpt", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}
    for said in (call, answer):
        for result in ({"role": "tool", "content": "1"}, {"from": "observation", "value": None}):
            refused = prompts_of(user, said, result, answer)
            assert refused.kind == "tool turns"
            assert refused.reason.endswith(
                "message 3 is by a tool, and what it would say to a new call nobody knows"
            )
