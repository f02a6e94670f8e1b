"""kill -9 at random moments while answers are written: no row is lost, none is written twice."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from dflash.contract.config import load_config
from dflash.contract.regeneration import RegenerationChoice

rows, kills = 400, 4
answers_to_killed = 60  # and no more: a run that is to be killed does not end before


class _SlowTarget(BaseHTTPRequestHandler):
    """Answers "<question>!" after a while, as often as it may, and counts what it is asked."""

    asked: ClassVar[Counter[str]] = Counter()
    may_answer: ClassVar[threading.Semaphore]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        question = body["messages"][-1]["content"]
        self.asked[question] += 1
        time.sleep(0.02)
        self.may_answer.acquire()
        message = {"role": "assistant", "content": question + "!"}
        answer = json.dumps({"choices": [{"message": message, "finish_reason": "stop"}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        try:
            self.wfile.write(answer)
        except OSError:
            return  # the asker was killed

    def log_message(self, *_args: object) -> None:
        """Quiet."""


@pytest.fixture
def url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _SlowTarget)
    server.daemon_threads = True
    server.handle_error = lambda *_args: None  # type: ignore[method-assign]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    thread.join()
    server.server_close()


def start(tmp_path: Path, url: str) -> subprocess.Popen[str]:
    config = tmp_path / "config.toml"
    config.write_text(load_config(None, [f"data.path={tmp_path / 'prompts.jsonl'}"]).to_toml())
    choice = RegenerationChoice(
        to=str(tmp_path / "out.jsonl"), engine="openai", url=url, model="m", concurrency=4
    )
    command = [sys.executable, "-P", "-m", "dflash", "regenerate", str(config)]
    return subprocess.Popen(
        [*command, "--choice", choice.to_json(), "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
    )


def test_every_row_is_written_once_in_order_over_killed_and_interrupted_runs(
    tmp_path: Path, url: str
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(
        "".join(json.dumps({"messages": [{"role": "user", "content": f"q{i}"}]}) + "\n" for i in range(rows))
    )
    part, rng = tmp_path / "out.jsonl.part", random.Random(0)
    _SlowTarget.asked.clear()
    for number in range(kills):
        before = part.stat().st_size if part.exists() else 0
        _SlowTarget.may_answer = threading.Semaphore(answers_to_killed)
        process = start(tmp_path, url)
        while process.poll() is None and (not part.exists() or part.stat().st_size <= before):
            time.sleep(0.005)
        time.sleep(rng.uniform(0, 0.15))
        last = number == kills - 1
        process.send_signal(signal.SIGINT if last else signal.SIGKILL)
        process.communicate(timeout=60)
        assert process.returncode == (130 if last else -signal.SIGKILL)
        _SlowTarget.may_answer.release(rows)  # to nobody
    assert not (tmp_path / "out.jsonl").exists()
    process = start(tmp_path, url)
    told, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert json.loads(told)["answered"] == rows
    answers = [json.loads(line)["messages"] for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [[m["content"] for m in turns] for turns in answers] == [[f"q{i}", f"q{i}!"] for i in range(rows)]
    # What a kill may cost is what was being asked and the portion that was being written.
    assert sum(_SlowTarget.asked.values()) <= rows + kills * (4 + 64)
    assert set(_SlowTarget.asked) == {f"q{i}" for i in range(rows)}
