import threading
from collections import Counter

import pytest

from dflash.contract.errors import UsageError
from dflash.contract.regeneration import RegenerationChoice
from dflash.regeneration.answers import Answer, Request
from dflash.regeneration.openai_engine import OpenAIEngine, tries


def requests(count=1, turn=0):
    return [
        Request(row=i, turn=turn, messages=({"role": "user", "content": f"question {i}"},))
        for i in range(count)
    ]


def ask(url, given, **options):
    choice = RegenerationChoice(**{"to": "x", "engine": "openai", "url": url, "model": "m", **options})
    engine = OpenAIEngine(choice, first_wait_s=0.001)
    return {request.row: answer for portion in engine.answer(given) for request, answer in portion}


def test_every_request_is_answered_once_and_several_at_a_time(endpoint, complete):
    together = threading.Barrier(4, timeout=20)

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


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (b"not json", "not a chat completion"),
        ({"choices": []}, "not a chat completion"),
        ({"choices": [{"message": {"content": "x"}, "finish_reason": "content_filter"}]}, "content_filter"),
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
