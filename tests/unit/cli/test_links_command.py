"""`dflash-profile links`: the table, the JSON, links.json in a run, and what a broken child comes to."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from cli import child
from cli.links_text import describe_links
from dflash.contract.config import load_config
from dflash.contract.errors import DFlashError
from dflash.contract.link_facts import LinkDevice, LinkEdge, LinkFacts, host
from dflash.contract.rundir import create_run, write_text

Call = Callable[..., tuple[int, str, str]]


def two_gpus(**changes: Any) -> LinkFacts:
    devices = tuple(
        LinkDevice(
            name=f"cuda:{i}",
            model="NVIDIA H200",
            uuid=f"GPU-{i}",
            pci=f"00000000:{i}b:00.0",
            numa_node=i if i == 0 else None,
            numa_reason=None if i == 0 else "the system says -1: it does not know",
        )
        for i in range(2)
    )
    speeds: dict[str, Any] = {
        "copy_bytes": 256_000_000,
        "latency_us": 9.5,
        "words": 64_000_000,
        "wrong_words": 0,
    }
    edges = (
        LinkEdge(
            src="cuda:0", dst="cuda:1", path="peer", peer_access=True, gb_per_s=372.0,
            both_ways_gb_per_s=365.0, **speeds,
        ),
        LinkEdge(src="cuda:1", dst="cuda:0", path="peer", peer_access=True, reason="OutOfMemoryError: full"),
        LinkEdge(
            src=host, dst="cuda:0", path="pinned", gb_per_s=55.0, both_ways_gb_per_s=47.0,
            all_at_once_gb_per_s=40.0, buffer_node=0, **speeds,
        ),
        LinkEdge(src=host, dst="cuda:0", path="pageable", gb_per_s=9.0, buffer_node=0, **speeds),
    )  # fmt: skip
    known: dict[str, Any] = {
        "measured_utc": "2026-01-01T00:00:00Z",
        "emulated": False,
        "torch": "2.11.0",
        "numa_nodes": (0, 1),
        "iommu": False,
        "numactl": True,
        "devices": devices,
        "edges": edges,
    }
    return LinkFacts(**{**known, **changes})


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the child was asked; `answer` is what it prints and `code` its exit code."""
    seen: dict[str, Any] = {"code": 0, "answer": json.dumps(two_gpus().to_json())}

    def ask(arguments: Sequence[str], *, text: str = "", limit_s: float) -> tuple[int, str]:
        seen.update(arguments=list(arguments), text=text)
        return seen["code"], seen["answer"]

    monkeypatch.setattr("cli.links_command.ask_trainer", ask)
    return seen


def test_the_table_shows_every_edge_and_what_is_unknown(call: Call, asked: dict[str, Any]) -> None:
    code, out, _ = call("dflash-profile", "links", "--mb", "64", "--set", "devices.kind=cuda")
    assert code == 0
    rows = {tuple(line.split()[:3]): line for line in out.splitlines()}
    assert "372 GB/s" in rows["cuda:0", "cuda:1", "peer"]
    assert "365 GB/s" in rows["cuda:0", "cuda:1", "peer"]
    assert rows["cuda:0", "cuda:1", "peer"].endswith("9.50 µs  right")
    assert "n/a" in rows["cuda:1", "cuda:0", "peer"]
    assert "40.0 GB/s" in rows["host", "cuda:0", "pinned"]
    assert "n/a" not in rows["host", "cuda:0", "pageable"], "both ways is no question on this path"
    assert "cuda:1 to cuda:0 (peer)  OutOfMemoryError: full" in out
    assert "n/a: the system says -1" in out
    assert "the host buffers lay on node 0" in out
    assert asked["arguments"] == ["links", "/dev/stdin", "--mb", "64"]
    assert load_config(None, ["devices.kind=cuda"]).to_toml() == asked["text"]


def test_something_wrong_is_loud_and_fails(call: Call, asked: dict[str, Any]) -> None:
    wrong = LinkEdge(src="cuda:0", dst="cuda:1", path="peer", words=100, wrong_words=3, gb_per_s=9.0)
    asked["answer"] = json.dumps(two_gpus(edges=(wrong,), findings=("do not train over it",)).to_json())
    code, out, _ = call("dflash-profile", "links")
    assert code == 1
    assert "WRONG: 3 of 100 words" in out
    assert "do not train over it" in out


def test_a_run_lends_its_configuration_and_keeps_the_result(
    call: Call, asked: dict[str, Any], tmp_path: Path
) -> None:
    run = create_run(tmp_path / "r", command=[])
    config = load_config(None, ["devices.link_gigabytes_per_s=7"])
    write_text(run.config_path, config.to_toml())
    code, out, _ = call("dflash-profile", "links", "--run", "r", "--json")
    assert code == 0
    assert asked["text"] == config.to_toml()
    assert (
        json.loads(out)
        == json.loads(run.links_path.read_text())
        == two_gpus().to_json()
        | {
            "numa_nodes": [0, 1],
            "devices": json.loads(asked["answer"])["devices"],
            "edges": json.loads(asked["answer"])["edges"],
            "findings": [],
        }
    )


def test_the_childs_failure_is_the_commands(call: Call, asked: dict[str, Any]) -> None:
    asked["code"] = 2
    assert call("dflash-profile", "links", "--json")[:2] == (2, "")
    asked["code"] = -9
    assert call("dflash-profile", "links")[0] == 137


@pytest.mark.parametrize("answer", ["", "{}", "[1]", "nonsense", '{"schema": 2}'])
def test_an_unsound_answer_is_told(call: Call, asked: dict[str, Any], answer: str) -> None:
    asked["answer"] = answer
    code, out, err = call("dflash-profile", "links")
    assert (code, out) == (1, "")
    assert "no sound answer" in err


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--run", "nowhere"], "nowhere"),
        (["--set", "devices.kind=tpu"], "tpu"),
        (["--mb", "0"], "--mb"),
        (["--mb", "257"], "--mb"),
    ],
)
def test_a_mistake_asks_nobody(call: Call, asked: dict[str, Any], arguments: list[str], named: str) -> None:
    code, out, err = call("dflash-profile", "links", *arguments)
    assert (code, out) == (2, "")
    assert named in err
    assert "arguments" not in asked


def test_the_real_child_measures_logical_links(call: Call) -> None:
    settings = ("--set", "devices.kind=logical", "--set", "devices.pageable_gigabytes_per_s=0.1")
    code, out, err = call("dflash-profile", "links", "--mb", "1", *settings, "--json")
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert document["emulated"] is True
    assert {edge["path"] for edge in document["edges"]} == {"peer", "pinned", "pageable"}
    assert all(edge["wrong_words"] == 0 and edge["gb_per_s"] > 0 for edge in document["edges"])


def test_emulated_links_say_so_and_an_unknown_machine_is_no_zero() -> None:
    text = describe_links(two_gpus(emulated=True, numa_nodes=None))
    assert "this says nothing of the speed of GPUs" in text
    assert "NUMA      n/a: the system lists no nodes" in text


def test_a_child_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "cli.child.python_command", lambda: [sys.executable, "-c", "input(); import time; time.sleep(60)"]
    )
    with pytest.raises(DFlashError, match=r"longer than 0\.5 s"):
        child.ask_trainer(["links"], text="go\n", limit_s=0.5)
