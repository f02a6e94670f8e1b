"""An OpenAI-compatible endpoint as an engine: vLLM, SGLang, llama.cpp or a service that serves the target.

Requests go out side by side, over the standard library's client. What may pass (connection lost, time-out,
408, 409, 425, 429, 5xx) is tried again after a growing wait, or the wait that the server names; what will not
(401, 403, 404, 405) ends everything; a prompt that the server will not have (400, 413, 422) is refused by its
reason. An endpoint that gives nothing for many requests one after the other ends everything too. Knows
nothing of files or tokens.
"""

from __future__ import annotations

import json
import os
import queue
import random
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from http.client import HTTPException
from typing import Any, Final

from dflash.contract.errors import DFlashError, UsageError
from dflash.contract.regeneration import RegenerationChoice
from dflash.data.chat_template import thinking_switches
from dflash.regeneration.answers import Answer, EngineError, Request

tries: Final = 5
first_wait_s: Final = 1.0  # doubled each time
longest_wait_s: Final = 60.0
time_out_s: Final = 600.0  # of one answer; it is not tried again then
least_silent: Final = 64  # requests without an answer, one after the other, that end everything
fatal: Final = (401, 403, 404, 405)
refusing: Final = (400, 413, 422)
passing: Final = (408, 409, 425, 429)
portion: Final = 64  # answers handed on together, at most
wait_s: Final = 0.2


class OpenAIEngine:
    """Answers by an endpoint's chat completions."""

    def __init__(
        self,
        choice: RegenerationChoice,
        first_wait_s: float = first_wait_s,
        *,
        thinking: str = "template",
    ) -> None:
        """`thinking`: as data.thinking. Raises UsageError for a key that cannot be sent."""
        self._choice, self._first_wait_s = choice, first_wait_s
        self._url = choice.url.rstrip("/") + "/chat/completions"
        self._key = _read_key(choice.key_variable)
        on = thinking == "on"
        self._switches = {} if thinking == "template" else dict.fromkeys(thinking_switches, on)
        self._most_silent, self._silent = max(least_silent, 2 * choice.concurrency), 0

    def describe(self) -> dict[str, Any]:
        """The endpoint and the model's name there."""
        return {"url": self._choice.url, "model": self._choice.model}

    def surroundings(self) -> dict[str, Any]:
        """How many requests at once."""
        return {
            "concurrency": self._choice.concurrency,
            "key": self._choice.key_variable if self._key else None,
        }

    def answer(self, requests: Sequence[Request]) -> Iterator[list[tuple[Request, Answer]]]:
        """Every request once, as answers come. Raises the first error that no request would escape.

        DFlashError when nothing comes of many requests one after the other, of whatever calls.
        """
        waiting: queue.SimpleQueue[Request] = queue.SimpleQueue()
        for request in requests:
            waiting.put(request)
        done: queue.SimpleQueue[tuple[Request, Answer] | DFlashError] = queue.SimpleQueue()
        stop = threading.Event()
        for _ in range(min(self._choice.concurrency, len(requests))):
            # Daemons: a signal must not wait for answers that are still being written elsewhere.
            threading.Thread(target=self._work, args=(waiting, done, stop), daemon=True).start()
        try:
            left = len(requests)
            while left:
                ready = _take(done, min(portion, left))
                left -= len(ready)
                yield ready
                self._check_alive(ready)
        finally:
            stop.set()

    def _check_alive(self, ready: Sequence[tuple[Request, Answer]]) -> None:
        for _, answer in ready:
            self._silent = self._silent + 1 if answer.silent else 0
            if self._silent >= self._most_silent:
                raise DFlashError(
                    "the endpoint answers nothing",
                    where=self._url,
                    found=f"{self._silent} requests one after the other, the last one: {answer.reason}",
                    remedy="see that it runs; the same command goes on from what is written",
                )

    def _work(
        self,
        waiting: queue.SimpleQueue[Request],
        done: queue.SimpleQueue[tuple[Request, Answer] | DFlashError],
        stop: threading.Event,
    ) -> None:
        while not stop.is_set():
            try:
                request = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                done.put((request, self._ask_patiently(request, stop)))
            except EngineError as error:
                silent = not isinstance(error, _AnswerError)
                done.put((request, Answer(finish="error", reason=str(error), silent=silent)))
            except RecursionError:
                done.put((request, Answer(finish="refused", reason="not JSON: nested too deep")))
            except DFlashError as error:
                done.put(error)
                return
            except Exception as error:  # noqa: BLE001 - the thread boundary: the main thread tells it
                done.put(DFlashError(f"{type(error).__name__}: {error}", where=self._url))
                return

    def _ask_patiently(self, request: Request, stop: threading.Event) -> Answer:
        wait = self._first_wait_s
        for attempt in range(1, tries + 1):
            try:
                return self._ask(request)
            except _PassingError as error:
                if attempt == tries or stop.is_set():
                    raise EngineError(f"{error} ({attempt} tries)") from None
                # Spread out, so that requests that failed together do not come back together.
                stop.wait(min(error.wait_s or wait * random.uniform(0.75, 1.25), longest_wait_s))
                wait *= 2
        raise AssertionError("a try returns or raises")

    def _ask(self, request: Request) -> Answer:
        body = json.dumps(self._body(request)).encode()
        headers = {"Content-Type": "application/json"} | (
            {"Authorization": f"Bearer {self._key}"} if self._key else {}
        )
        call = urllib.request.Request(self._url, data=body, headers=headers)
        try:
            with urllib.request.urlopen(call, timeout=time_out_s) as response:
                return read_completion(response.read())
        except urllib.error.HTTPError as error:
            return self._judge(error)
        except (OSError, HTTPException) as error:
            if isinstance(getattr(error, "reason", error), TimeoutError):
                raise EngineError(f"no answer from {self._url} within {time_out_s:g} s") from None
            raise _PassingError(f"no answer from {self._url}: {str(error) or type(error).__name__}") from None

    def _body(self, request: Request) -> dict[str, Any]:
        chosen = self._choice
        body: dict[str, Any] = {
            "model": chosen.model,
            "messages": [dict(message) for message in request.messages],
            "max_tokens": chosen.max_new_tokens,
            "temperature": chosen.temperature,
            "top_p": chosen.top_p,
            # One seed for each answer, so that it does not depend on what else is asked.
            "seed": (chosen.seed * 1_000_003 + request.row * 101 + request.turn) % 2**31,
        }
        if request.tools:
            body["tools"] = list(request.tools)
        if self._switches:
            body["chat_template_kwargs"] = self._switches
        return body

    def _judge(self, error: urllib.error.HTTPError) -> Answer:
        """What an error status means: a refused prompt, or one of two errors."""
        told = _told(error)
        if error.code in refusing:
            return Answer(finish="refused", reason=f"refused by the endpoint: {error.code} {told}")
        if error.code in fatal:
            raise UsageError(
                f"the endpoint does not serve this: {error.code} {told}",
                where=self._url,
                found=f"model {self._choice.model}, key from {self._choice.key_variable}"
                + ("" if self._key else ", which is not set"),
                remedy="check --url (up to and with /v1), --model and the key",
            )
        if error.code in passing or error.code >= 500:
            raise _PassingError(f"{error.code} {told}", _seconds(error.headers.get("Retry-After")))
        raise EngineError(f"{error.code} {told}")


class _PassingError(Exception):
    """An answer that may be had later."""

    def __init__(self, text: str, wait_s: float | None = None) -> None:
        super().__init__(text)
        self.wait_s = wait_s


class _AnswerError(EngineError):
    """An answer came, and it is not to be used."""


def _read_key(variable: str) -> str:
    """The key that an environment variable holds; empty for none. No message ever has it."""
    key = os.environ.get(variable, "").strip()
    if not (key.isascii() and key.isprintable()):
        raise UsageError(
            "the key cannot be sent",
            where=variable,
            found="characters that are not printable ASCII",
            remedy="set the variable to the key alone",
        )
    return key


def read_completion(body: bytes) -> Answer:
    """The answer in a chat completion. Raises EngineError for anything else."""
    try:
        document = json.loads(body)
        choice = document["choices"][0]
        message, finish = choice["message"], choice.get("finish_reason")
        content, reasoning = (
            message.get("content") or "",
            message.get("reasoning_content") or message.get("reasoning"),
        )
        tokens = (document.get("usage") or {}).get("completion_tokens")
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise EngineError(f"not a chat completion: {type(error).__name__} in {body[:80]!r}") from None
    if message.get("tool_calls"):
        return Answer(finish="refused", reason="tool turns: the answer calls a tool, whose result nobody has")
    if finish not in ("stop", "length"):
        raise _AnswerError(f"the answer ended by {finish!r}")
    if not isinstance(content, str) or not isinstance(reasoning, str | None):
        raise _AnswerError(f"the content is no text but {type(content or reasoning).__name__}")
    return Answer(content=content, reasoning=reasoning, tokens=tokens, finish=finish)


def _take(
    done: queue.SimpleQueue[tuple[Request, Answer] | DFlashError], most: int
) -> list[tuple[Request, Answer]]:
    """At least one answer, and what else is there by then."""
    ready: list[tuple[Request, Answer]] = []
    while len(ready) < most:
        try:
            got = done.get(timeout=wait_s) if not ready else done.get_nowait()
        except queue.Empty:
            if ready:
                break
            continue
        if isinstance(got, DFlashError):
            if ready:  # these first
                done.put(got)
                break
            raise got
        ready.append(got)
    return ready


def _told(error: urllib.error.HTTPError) -> str:
    try:
        text = error.read(2000).decode("utf-8", "replace")
    except (OSError, HTTPException):
        return str(error.reason)
    try:
        said = json.loads(text)
        inner = said.get("error", said)
        text = inner["message"] if isinstance(inner, dict) else str(inner)
    except (ValueError, LookupError, AttributeError, TypeError):
        pass
    return " ".join(str(text).split())[:300] or str(error.reason)


def _seconds(text: str | None) -> float | None:
    try:
        return None if text is None else max(float(text), 0.0)
    except ValueError:
        return None
