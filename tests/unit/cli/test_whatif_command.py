"""`dflash-profile whatif` from the command line: text, JSON and refusals."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.played_pipeline import play

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("runs") / "a"
    return str(play(path, windows=24, targets=2, preset="host", target_copy_s=0.4, backward_s=0.3))


def test_the_answer_in_words(call: Call, run: str) -> None:
    code, out, err = call("dflash-profile", "whatif", run, "--set", "split=3-1", "--set", "transport=peer")
    assert (code, err) == (0, "")
    for words in (
        "pipeline.split=3-1",
        "90 % interval",
        "logical devices have no ceilings",
        "no run had 3 targets",
        "n/a: run.json",
    ):
        assert words in out, words


def test_the_answer_as_one_strict_document(call: Call, run: str) -> None:
    code, out, err = call("dflash-profile", "whatif", run, "--set", "transport=peer", "--json")
    assert (code, err) == (0, "")
    answer = json.loads(out)
    predicted = answer["predicted"]
    assert answer["changes"] == {"transport.preset": "peer"}
    assert predicted["low"] < predicted["tokens_per_s"] < predicted["high"]
    assert predicted["gain"] > 0.2
    assert answer["device_limit"]["tokens_per_s"] is None
    assert answer["device_limit"]["reason"] == "logical devices have no ceilings"
    assert answer["assumptions"]


def test_what_cannot_be_asked_is_a_usage_error(call: Call, run: str) -> None:
    code, out, err = call("dflash-profile", "whatif", run, "--set", "drafter.layers=3")
    assert (code, out) == (2, "")
    assert "no forecast is made for drafter.layers" in err
    assert call("dflash-profile", "whatif", run, "--set", "spilt=3-1")[0] == 2
    assert call("dflash-profile", "whatif", run, run)[0] == 2
    assert call("dflash-profile", "whatif")[0] == 2
