"""A run exported as a Chrome trace: the structure that viewers need, from whole, torn and hostile runs."""

from __future__ import annotations

import gzip
import itertools
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dflash.contract.arrowlog import stream_batches
from dflash.contract.errors import RunError
from profiler import trace_export
from profiler.trace_export import export_trace, gpus, host, links, queues, sensors, threads
from tests.played_pipeline import play
from tests.run_builder import RunBuilder

Event = dict[str, Any]


def load(path: Path) -> list[Event]:
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    document = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    events: list[Event] = document["traceEvents"]
    check(events)
    return events


def check(events: list[Event]) -> None:
    """What the format asks of every event, and proper nesting on each thread."""
    opened: dict[Any, float] = {}
    tracks: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    for event in events:
        assert isinstance(event["name"], str)
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        assert event["ph"] in "XbeCistfM"
        if event["ph"] == "M":
            continue
        assert event["ts"] == event["ts"]
        if event["ph"] == "X":
            assert event["dur"] >= 0
            tracks[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
        elif event["ph"] == "C":
            assert list(event["args"]) == ["value"]
        elif event["ph"] == "b":
            opened[event["id"]] = event["ts"]
        elif event["ph"] == "e":
            assert event["ts"] >= opened.pop(event["id"])
    assert opened == {}
    for spans in tracks.values():
        ends: list[float] = []
        for begin, end in sorted(spans, key=lambda span: (span[0], -span[1])):
            while ends and ends[-1] <= begin + 1e-3:
                ends.pop()
            assert not ends or end <= ends[-1] + 1e-3, "spans overlap without nesting"
            ends.append(end)


def names_of(events: list[Event], pid: int) -> dict[int, str]:
    found = [e for e in events if e["name"] == "thread_name" and e["pid"] == pid]
    return {e["tid"]: e["args"]["name"] for e in found}


def test_a_played_run_has_tracks_counters_and_flows(tmp_path: Path) -> None:
    path = play(tmp_path / "run", targets=2, drafters=1, link_copy_s=0.1, windows=12)
    exported = export_trace(path)
    assert (exported.path, exported.left_out) == (path / "traces" / "run.json.gz", 0)
    events = load(exported.path)
    assert len(events) == exported.events
    assert sorted(name.split(" on ")[0] for name in names_of(events, threads).values()) == [
        "drafter 0", "prefetch 0", "target 0", "target 1", "trainer",
    ]  # fmt: skip
    counters = {e["name"] for e in events if e["ph"] == "C"}
    assert {"depth q_pre", "tokens/s", "rss_anon_bytes"} <= counters
    rates = [e["args"]["value"] for e in events if e["name"] == "tokens/s"]
    assert len(rates) == 11
    assert {e["pid"] for e in events if e["ph"] in "be"} == {links}
    flows: dict[int, str] = defaultdict(str)
    for event in sorted((e for e in events if e.get("cat") == "batch"), key=lambda e: e["ts"]):
        flows[event["id"]] += event["ph"]
    assert set(flows.values()) == {"stf"}
    assert len(flows) == 12 * 6


def test_a_flow_point_lies_inside_the_span_that_it_is_bound_to(tmp_path: Path) -> None:
    events = load(export_trace(play(tmp_path / "run", windows=10)).path)
    spans = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            spans[event["tid"]].append((event["ts"], event["ts"] + event["dur"], event["name"]))
    step = {"s": "pack", "t": "forward", "f": "backward"}
    for event in events:
        if event["ph"] in step:
            inside = {name for lo, hi, name in spans[event["tid"]] if lo <= event["ts"] <= hi}
            assert step[event["ph"]] in inside


def test_gpu_work_and_sensors_have_places_of_their_own(tmp_path: Path) -> None:
    builder = RunBuilder(tmp_path / "run")
    builder.span("target", 0, "forward", 1.0, 1.1, device="cuda:0", batch=3)
    builder.span("target", 0, "forward", 1.0, 2.0, device="cuda:0", clock="gpu", batch=3)
    builder.span("trainer", 0, "optimizer", 1.2, 1.3, tid=300)  # emitted from the target's thread
    builder.sample("gpu", "GPU-a", "util_pct", 1.0, 98.0)
    builder.sample("gpu", "GPU-a", "util_pct", 1.1, None, "lost")
    builder.sample("host", "tree", "rss_anon_bytes", 1.0, 5e9)
    builder.sample("host", "12:python", "thread_cpu_s", 1.0, 5.0)
    gpu = {"uuid": "GPU-a", "name": "H200", "index": 4}
    events = load(export_trace(builder.finish(hardware={"gpus": [gpu]})).path)
    assert names_of(events, gpus) == {1: "target 0 on cuda:0"}
    assert names_of(events, threads) == {300: "target 0 on cuda:0"}
    (on_gpu,) = [e for e in events if e["pid"] == gpus and e["ph"] == "X"]
    assert (on_gpu["ts"], on_gpu["dur"]) == (1e6, 1e6)
    counters = [(e["pid"], e["name"], e["args"]["value"]) for e in events if e["ph"] == "C"]
    assert counters == [
        (sensors, "GPU 4 H200 util_pct", 98.0),
        (host, "rss_anon_bytes", 5e9),
    ] or counters == [
        (host, "rss_anon_bytes", 5e9),
        (sensors, "GPU 4 H200 util_pct", 98.0),
    ]


def test_hostile_names_and_numbers_stay_json(tmp_path: Path) -> None:
    builder = RunBuilder(tmp_path / "run")
    evil = '"}]</script>\x1b[31m\u2028\ud800'.encode("utf-8", "replace").decode()
    builder.span("target", 0, evil, 1.0, 1.5, note="x" * 10_000, channel=evil)
    builder.span("target", 0, "forward", 2.0, 1.0)
    builder.event("span", "forward", "target", 0, t_ns=None, dur_ns=5)
    builder.gauge("target", 0, "depth", 1.0, float("nan"))
    builder.gauge("target", 0, "depth", 1.0, float("inf"))
    builder.sample("gpu", evil, evil, 1.0, float("inf"))
    exported = export_trace(builder.finish(hardware={"gpus": "none"}), tmp_path / "out.json")
    assert exported.left_out == 4
    (span,) = [e for e in load(exported.path) if e["ph"] == "X"]
    assert span["name"] == evil
    assert len(span["args"]["note"]) == 300


def test_streams_that_are_not_ours_are_left_out_and_counted(tmp_path: Path) -> None:
    path = RunBuilder(tmp_path / "run").finish()
    odd = {
        "types": pa.table({"t_ns": ["soon"], "kind": ["mark"], "name": ["x"], "stage": ["target"]}),
        "columns": pa.table([[1], [2], ["mark"]], names=["t_ns", "t_ns", "kind"]),
        "bytes": pa.table({"t_ns": [1], "kind": ["mark"], "name": pa.array([b"\xff"]).view(pa.string())}),
    }
    for name, table in odd.items():
        with pa.ipc.new_stream(str(path / "events" / f"{name}.arrow"), table.schema) as writer:
            writer.write_table(table)
    exported = export_trace(path)
    assert exported.left_out == 3
    assert {event["ph"] for event in load(exported.path)} == {"M"}


def test_a_torn_stream_is_exported_up_to_the_tear(tmp_path: Path) -> None:
    path = play(tmp_path / "run", windows=10)
    file = path / "events" / "trainer.arrow"
    data = file.read_bytes()
    whole = len(load(export_trace(path).path))
    file.write_bytes(data[: len(data) - 40])
    (path / "events" / "empty.arrow").touch()
    assert 0 < len(load(export_trace(path).path)) <= whole


def test_rows_are_streamed_and_not_gathered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = play(tmp_path / "run", windows=10)
    written = 0
    steps: list[int] = []

    def write(file: Any, events: Iterable[Event]) -> int:
        nonlocal written
        for _ in events:
            written += 1
        return written

    def batches(_path: Path) -> Iterator[Any]:
        for batch in stream_batches(_path):
            for start in range(0, batch.num_rows, 50):
                steps.append(written)
                yield batch.slice(start, 50)

    monkeypatch.setattr(trace_export, "_write", write)
    monkeypatch.setattr(trace_export, "stream_batches", batches)
    export_trace(path)
    # By the time that a piece is read, what came before it has been written.
    assert len(steps) > 10
    assert all(later > earlier for earlier, later in itertools.pairwise(steps[1:9]))


def test_what_is_no_run_and_what_cannot_be_written_are_told(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="not a run directory"):
        export_trace(tmp_path)
    path = RunBuilder(tmp_path / "run").finish()
    with pytest.raises(RunError, match="cannot be written"):
        export_trace(path, tmp_path / "nowhere" / "out.json")
    assert list((tmp_path / "run").glob(".*tmp")) == []


def test_gauges_of_devices_are_told_apart(tmp_path: Path) -> None:
    builder = RunBuilder(tmp_path / "run")
    builder.gauge("trainer", 0, "allocated_bytes", 1.0, 5.0, device="cuda:0")
    builder.gauge("trainer", 0, "allocated_bytes", 1.0, 6.0, device="cuda:1")
    events = load(export_trace(builder.finish()).path)
    assert {(e["pid"], e["name"]) for e in events if e["ph"] == "C"} == {
        (queues, "allocated_bytes cuda:0"),
        (queues, "allocated_bytes cuda:1"),
    }
