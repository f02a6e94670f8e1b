"""Run directories: whole, torn, foreign and odd ones."""

from __future__ import annotations

import json
import math
import pickle
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import ipc

from dflash.contract.config import TrainConfig
from dflash.contract.errors import RunError
from dflash.contract.events import event_schema, sample_schema
from profiler import run as run_module
from profiler.run import Run, _encoded, _names
from tests.run_builder import RunBuilder, nanoseconds, start_ns


def small_run(path: Path) -> Path:
    builder = RunBuilder(path, TrainConfig())
    builder.span("target", 0, "forward", 1.0, 2.0, batch=0, tokens=100)
    builder.gauge("target", 0, "depth", 0.5, 3.0, channel="q_pre")
    builder.window(0, 2.0, 100, loss=1.5)
    builder.sample("gpu", "GPU-1", "power_w", 1.0, 300.0)
    builder.sample("gpu", "GPU-1", "power_w", 2.0, None, "not supported")
    return builder.finish()


def test_events_and_samples_are_frames_on_one_clock(tmp_path: Path) -> None:
    run = Run.open(small_run(tmp_path / "run"))
    assert list(run.events["name"]) == ["depth", "forward", "window"]  # by time
    assert run.events["t_ns"].iloc[0] == nanoseconds(0.5)
    assert run.start_ns == start_ns
    assert next(iter(run.samples["value"])) == 300.0
    assert run.config == TrainConfig()
    assert run.emulated is True
    assert run.torn == ()
    assert run.set_aside == {}


def test_a_missing_name_is_never_nan(tmp_path: Path) -> None:
    run = Run.open(small_run(tmp_path / "run"))
    forward = run.events[run.events["name"] == "forward"].iloc[0]
    assert (forward["channel"], forward["path"], forward["note"]) == ("n/a", "n/a", None)
    assert run.samples["reason"].tolist() == [None, "not supported"]
    assert math.isnan(run.samples["value"].iloc[1])


def test_a_torn_tail_costs_the_tail_and_is_named(tmp_path: Path) -> None:
    path = small_run(tmp_path / "run")
    stream = path / "events" / "trainer.arrow"
    stream.write_bytes(stream.read_bytes()[:-8])
    run = Run.open(path)
    assert run.torn == ("events/trainer.arrow",)
    assert len(run.events) == 3


def test_a_stream_killed_before_its_header_is_named(tmp_path: Path) -> None:
    path = small_run(tmp_path / "run")
    (path / "samples" / "host.arrow").write_bytes(b"")
    run = Run.open(path)
    assert run.torn == ("samples/host.arrow (nothing readable)",)
    assert len(run.samples) == 2


def test_a_run_without_any_stream_is_empty(tmp_path: Path) -> None:
    path = small_run(tmp_path / "run")
    for stream in path.rglob("*.arrow"):
        stream.unlink()
    run = Run.open(path)
    assert len(run.events) == len(run.samples) == 0
    assert list(run.events.columns) == event_schema.names


def test_rows_that_cannot_be_placed_are_left_out_and_counted(tmp_path: Path) -> None:
    builder = RunBuilder(tmp_path / "run")
    builder.span("target", 0, "forward", 2.0, 1.0)
    builder.event("span", "forward", "target", 0, t_ns=nanoseconds(1.0))
    builder.event("mark", "window", "trainer", 0, t_ns=None)
    builder.gauge("target", 0, "depth", 1.0, math.nan, channel="q_pre")
    builder.sample("host", "tree", "rss_anon_bytes", 5.0, 1.0)
    builder.sample("host", "tree", "rss_anon_bytes", 4.0, 2.0)  # its clock ran backwards
    builder.sample("host", "tree", "rss_anon_bytes", 6.0, math.inf)
    run = Run.open(builder.finish())
    assert len(run.events) == 0
    assert run.set_aside == {
        "spans that end before they start": 1,
        "spans without a duration": 1,
        "events without a time": 1,
        "gauges without a finite value": 1,
        "samples whose clock ran backwards": 1,
        "samples without a finite value or a reason": 1,
    }
    assert run.samples["reason"].tolist() == [None, "not a finite number"]


def test_nothing_pickled_is_read(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[object, ...]:
            return (pytest.fail, ("unpickled",))

    path = small_run(tmp_path / "run")
    (path / "events" / "evil.arrow").write_bytes(pickle.dumps(Bomb()))
    assert "events/evil.arrow (nothing readable)" in Run.open(path).torn


@pytest.mark.parametrize("column", ["t_ns", "name"])
def test_a_stream_without_a_needed_column_is_refused(tmp_path: Path, column: str) -> None:
    path = small_run(tmp_path / "run")
    schema = pa.schema([field for field in event_schema if field.name != column])
    with ipc.new_stream(str(path / "events" / "odd.arrow"), schema) as writer:
        writer.write_table(schema.empty_table())
    with pytest.raises(RunError, match=rf"'{column}'"):
        Run.open(path)


def test_columns_of_another_version_do_not_matter(tmp_path: Path) -> None:
    path = small_run(tmp_path / "run")
    table = pa.table({"t_ns": [1], "kind": ["mark"], "name": ["x"], "stage": ["y"], "news": [1.5]})
    with ipc.new_stream(str(path / "events" / "newer.arrow"), table.schema) as writer:
        writer.write_table(table)
    run = Run.open(path)
    assert next(iter(run.events["name"])) == "x"
    assert list(run.events.columns) == event_schema.names


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="not a run directory"):
        Run.open(tmp_path)


def test_values_of_another_version_leave_no_config_but_stay_readable(tmp_path: Path) -> None:
    path = small_run(tmp_path / "run")
    manifest = json.loads((path / "run.json").read_text())
    manifest["config"] = {"transport.depth": 3, "transport.teleport": True}
    (path / "run.json").write_text(json.dumps(manifest))
    run = Run.open(path)
    assert run.config is None
    assert run.config_values["transport.depth"] == 3


def test_config_toml_serves_where_the_manifest_is_silent(tmp_path: Path) -> None:
    builder = RunBuilder(tmp_path / "run")
    builder.run.config_path.write_text(TrainConfig().to_toml())
    assert Run.open(builder.finish()).config == TrainConfig()


def test_names_keep_their_order_across_parts_and_a_missing_one_is_among_them() -> None:
    parts = [
        pa.table({"metric": pa.array(names, pa.string())}) for names in (["b", None, "a"], [None, "c", "b"])
    ]
    names = _names(pa.concat_tables(map(_encoded, parts))["metric"])
    assert names.tolist() == ["b", "n/a", "a", "n/a", "c", "b"]
    assert names.cat.categories.tolist() == ["b", "n/a", "a", "c"]
    told = _names(_encoded(pa.table({"metric": pa.array(["n/a", None, "x"], pa.string())}))["metric"])
    assert told.tolist() == ["n/a", "n/a", "x"]
    assert _names(_encoded(sample_schema.empty_table())["metric"]).tolist() == []


def test_a_stream_of_many_small_batches_reads_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "_part_rows", 7)
    builder = RunBuilder(tmp_path / "run")
    for at in range(50):
        builder.sample("host", "tree", "rss_anon_bytes", float(at), float(at))
    samples = Run.open(builder.finish()).samples
    assert samples["value"].tolist() == list(map(float, range(50)))
    assert set(samples["metric"]) == {"rss_anon_bytes"}


@pytest.mark.parametrize(
    ("order", "backwards"),
    [
        ([("a", 1), ("a", 2), ("b", 1), ("b", 2)], 0),  # one source after the other
        ([("a", 1), ("b", 1), ("a", 2), ("b", 2)], 0),
        ([("a", 2), ("a", 1), ("b", 1)], 1),
        ([("a", 2), ("b", 1), ("a", 1)], 1),  # in two pieces
    ],
)
def test_a_clock_that_ran_backwards_is_found_wherever_the_rows_lie(
    tmp_path: Path, order: list[tuple[str, int]], backwards: int
) -> None:
    table = pa.Table.from_pylist(
        [{"t_ns": at, "source": source, "key": "k", "metric": "m", "value": 1.0} for source, at in order],
        schema=sample_schema,
    )
    path = RunBuilder(tmp_path / "run").finish()
    run = Run.of_tables(path, {}, event_schema.empty_table(), table)
    assert run.set_aside.get("samples whose clock ran backwards", 0) == backwards
    assert len(run.samples) == len(order) - backwards
