import dataclasses
import threading
import time
from collections import Counter

import pytest

from dflash.contract.errors import DFlashError, UsageError
from dflash.contract.regeneration import RegenerationChoice
from dflash.regeneration.answers import Answer, Request
from dflash.regeneration.openai_engine import OpenAIEngine, tries


def requests(count=1, turn=0):
    return [
        Request(row=i, turn=turn, messages=({"role": "user", "content": f"question {i}"},))
        for i in range(count)
    ]


def ask(url, given, thinking="template", **options):
    choice = RegenerationChoice(**{"to": "x", "engine": "openai", "url": url, "model": "m", **options})
    engine = OpenAIEngine(choice, first_wait_s=0.001, thinking=thinking)
    return {request.row: answer for portion in engine.answer(given) for request, answer in portion}


def test_every_request_is_answered_once_and_several_at_a_time(endpoint, complete):
    together = threading.Barrier(4, timeout=60)

    def respond(body):
        together.wait()
        return complete("re: " + body["messages"][0]["content"])

    endpoint.respond = respond
    found = ask(endpoint.url, requests(12), concurrency=4)
    assert {row: answer.content for row, answer in found.items()} == {
        i: f"re: question {i}" for i in range(12)
    }
    assert len(endpoint.bodies) == 12
    assert found[0] == Answer(content="re: question 0", tokens=3, finish="stop")


def test_what_is_asked_for_is_sent_with_a_seed_of_its_own(endpoint, monkeypatch):
    monkeypatch.setenv("KEY", "secret")
    options = {"temperature": 0.7, "top_p": 0.9, "max_new_tokens": 50, "seed": 3, "key_variable": "KEY"}
    ask(endpoint.url + "/", requests(3), **options)
    ask(endpoint.url, requests(3, turn=1), **options)
    assert all(body["max_tokens"] == 50 and body["temperature"] == 0.7 for body in endpoint.bodies)
    assert all(body["top_p"] == 0.9 and body["model"] == "m" for body in endpoint.bodies)
    assert len({body["seed"] for body in endpoint.bodies}) == 6
    assert set(endpoint.keys) == {"Bearer secret"}


def test_an_endpoint_without_a_key_gets_none(endpoint, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    ask(endpoint.url, requests())
    assert endpoint.keys == [None]


@pytest.mark.parametrize("key", ["secret-1\n", " secret-1\r\n"])
def test_blanks_around_a_key_are_no_part_of_it(endpoint, monkeypatch, key):
    monkeypatch.setenv("KEY", key)
    ask(endpoint.url, requests(), key_variable="KEY")
    assert endpoint.keys == ["Bearer secret-1"]


@pytest.mark.parametrize("key", ["secret\rkey", "secret\x1bkey", "secretkéy"])
def test_a_key_that_cannot_be_sent_is_refused_and_never_told(endpoint, monkeypatch, key):
    monkeypatch.setenv("KEY", key)
    with pytest.raises(UsageError, match="KEY") as caught:
        ask(endpoint.url, requests(), key_variable="KEY")
    assert "secret" not in caught.value.render()
    assert endpoint.bodies == []


@pytest.mark.parametrize(("thinking", "sent"), [("template", None), ("on", True), ("off", False)])
def test_the_switch_for_thinking_is_sent(endpoint, thinking, sent):
    ask(endpoint.url, requests(), thinking=thinking)
    wanted = None if sent is None else {"enable_thinking": sent, "thinking": sent}
    assert endpoint.bodies[0].get("chat_template_kwargs") == wanted


@pytest.mark.parametrize("status", [408, 429, 500, 503])
def test_what_passes_is_tried_again(endpoint, complete, status):
    seen = Counter()

    def respond(body):
        text = body["messages"][0]["content"]
        seen[text] += 1
        return complete("at last") if seen[text] == 3 else (status, {"error": "busy"}, {"Retry-After": "0"})

    endpoint.respond = respond
    found = ask(endpoint.url, requests(2))
    assert [answer.content for answer in found.values()] == ["at last", "at last"]
    assert set(seen.values()) == {3}


def test_what_does_not_pass_is_an_error_of_its_row_alone(endpoint, complete):
    def respond(body):
        broken = body["messages"][0]["content"] == "question 1"
        return (502, b"<html>bad gateway</html>", {}) if broken else complete("fine")

    endpoint.respond = respond
    found = ask(endpoint.url, requests(3))
    assert [found[i].finish for i in range(3)] == ["stop", "error", "stop"]
    assert found[1].reason == f"502 <html>bad gateway</html> ({tries} tries)"


def test_a_prompt_that_the_server_will_not_have_is_refused_with_its_words(endpoint):
    endpoint.respond = lambda _body: (400, {"error": {"message": "context length\nis 8"}}, {})
    found = ask(endpoint.url, requests())
    assert found[0] == Answer(finish="refused", reason="refused by the endpoint: 400 context length is 8")
    assert len(endpoint.bodies) == 1


@pytest.mark.parametrize("status", [401, 404])
def test_what_no_request_would_escape_ends_everything(endpoint, status):
    endpoint.respond = lambda _body: (status, {"error": {"message": "no such model"}}, {})
    with pytest.raises(UsageError, match=f"{status} no such model") as caught:
        ask(endpoint.url, requests(50), concurrency=2)
    assert "--model" in caught.value.remedy
    assert len(endpoint.bodies) < 50


def test_nobody_there_is_an_error_of_every_row():
    found = ask("http://127.0.0.1:9/v1", requests(2))
    assert {answer.finish for answer in found.values()} == {"error"}
    assert "http://127.0.0.1:9/v1" in found[0].reason


def test_an_endpoint_that_gives_nothing_ends_the_command():
    asked = requests(100_000)
    with pytest.raises(DFlashError, match="the endpoint answers nothing") as caught:
        ask("http://127.0.0.1:9/v1", asked, concurrency=8)
    assert caught.value.exit_code == 1
    assert caught.value.found.startswith("64 requests one after the other, the last one: no answer from")
    assert "the same command goes on" in caught.value.remedy


def test_answers_between_errors_and_answers_that_are_not_used_keep_the_command_alive(endpoint, complete):
    def respond(body):
        number = int(body["messages"][0]["content"].split()[1])
        if number < 70:
            return complete("x", "content_filter")
        return complete("fine") if number % 50 == 0 else (418, {"error": "no"}, {})

    endpoint.respond = respond
    found = ask(endpoint.url, requests(180), concurrency=1)
    assert len(found) == 180
    assert sum(answer.finish == "stop" for answer in found.values()) == 2


def test_what_came_before_an_error_is_handed_on(endpoint, complete):
    def respond(body):
        last = body["messages"][0]["content"] == "question 5"
        return (401, {"error": "no"}, {}) if last else complete("fine")

    endpoint.respond = respond
    choice = RegenerationChoice(to="x", engine="openai", url=endpoint.url, model="m", concurrency=1)
    got = []
    with pytest.raises(UsageError):
        got.extend(pair for portion in OpenAIEngine(choice).answer(requests(9)) for pair in portion)
    assert [request.row for request, _ in got] == [0, 1, 2, 3, 4]


def test_a_request_that_took_all_its_time_is_not_tried_again(endpoint, complete, monkeypatch):
    done = threading.Event()
    monkeypatch.setattr("dflash.regeneration.openai_engine.time_out_s", 0.1)
    endpoint.respond = lambda _body: (done.wait(20), complete("late"))[1]
    found = ask(endpoint.url, requests())
    done.set()
    assert found[0].reason.endswith("within 0.1 s")
    deadline = time.monotonic() + 30
    while not endpoint.bodies and time.monotonic() < deadline:  # the endpoint may come to it later
        time.sleep(0.01)
    assert len(endpoint.bodies) == 1


def test_a_row_nested_too_deep_for_json_is_refused_alone(endpoint):
    deep = []
    for _ in range(100_000):
        deep = [deep]
    given = requests(2)
    found = ask(endpoint.url, [dataclasses.replace(given[0], tools=({"a": deep},)), given[1]])
    assert found[0] == Answer(finish="refused", reason="not JSON: nested too deep")
    assert found[1].finish == "stop"


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (b"not json", "not a chat completion"),
        ({"choices": []}, "not a chat completion"),
        ({"choices": [{"message": {"content": "x"}, "finish_reason": "content_filter"}]}, "content_filter"),
        (
            {"choices": [{"message": {"content": [{"type": "text"}]}, "finish_reason": "stop"}]},
            "the content is no text but list",
        ),
    ],
)
def test_other_answers_are_errors(endpoint, document, expected):
    endpoint.respond = lambda _body: (200, document, {})
    found = ask(endpoint.url, requests())
    assert found[0].finish == "error"
    assert expected in found[0].reason


def test_cut_answers_thinking_and_calls_are_told_apart(endpoint, complete):
    endpoint.respond = lambda _body: complete("a b", "length", reasoning_content="hm")
    assert ask(endpoint.url, requests())[0] == Answer(
        content="a b", reasoning="hm", tokens=2, finish="length"
    )
    endpoint.respond = lambda _body: complete("", "stop", tool_calls=[{"id": "1"}])
    assert ask(endpoint.url, requests())[0].reason.startswith("tool turns")
