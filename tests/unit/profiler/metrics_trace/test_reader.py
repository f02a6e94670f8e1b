"""A metrics file is read strictly, and all that could not be used is told."""

from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from dflash.contract.errors import UsageError
from profiler.metrics_trace.fields import gpu_fields, gpu_link_field, line_fields
from profiler.metrics_trace.reader import read_metrics


def write(path: Path, *lines: Any) -> Path:
    """One line each: text as it is, anything else as JSON."""
    path.write_text("".join((x if isinstance(x, str) else json.dumps(x)) + "\n" for x in lines))
    return path


def test_intervals_last_until_the_next_and_the_last_as_long_as_usual(tmp_path: Path) -> None:
    rows = read_metrics(write(tmp_path / "m", {"t": 100}, {"t": 102}, {"t": 104.5})).rows
    assert rows["start_s"].tolist() == [0.0, 2.0, 4.5]
    assert rows["length_s"].tolist() == [2.0, 2.5, 2.25]


def test_a_told_length_counts_and_makes_one_interval_enough(tmp_path: Path) -> None:
    assert read_metrics(write(tmp_path / "m", {"t": 0, "dt": 5})).rows["length_s"].tolist() == [5.0]
    with pytest.raises(UsageError, match="length is not known"):
        read_metrics(write(tmp_path / "n", {"t": 0}))


def test_a_gap_is_covered_by_no_interval(tmp_path: Path) -> None:
    trace = read_metrics(write(tmp_path / "m", *({"t": t} for t in (0, 2, 4, 20, 22))))
    assert trace.rows["length_s"].tolist() == [2.0] * 5
    assert trace.rows["segment"].tolist() == [0, 0, 0, 1, 1]
    assert any("1 gaps" in note for note in trace.notes)


def test_bad_lines_are_named_and_leave_a_gap(tmp_path: Path) -> None:
    good = [{"t": t} for t in (0, 2, 4, 8, 10)]
    lines = [*good[:2], '{"t": 3,', good[2], "[1]", '{"loss": 1}', '{"t": "7"}', *good[3:]]
    trace = read_metrics(write(tmp_path / "m", *lines))
    assert [(bad.line, bad.reason.split(":")[0]) for bad in trace.bad_lines] == [
        (3, "not JSON"),
        (5, "not a JSON object"),
        (6, 'no "t"'),
        (7, "\"t\" is '7'"),
    ]
    assert trace.rows["segment"].tolist() == [0, 0, 0, 1, 1]


def test_a_clock_that_runs_backwards_is_set_aside_and_counted(tmp_path: Path) -> None:
    trace = read_metrics(write(tmp_path / "m", *({"t": t} for t in (0, 2, 4, 6, 3, 4, 8))))
    assert trace.rows["start_s"].tolist() == [0, 2, 4, 6, 8]
    assert any("lines 5, 6 set aside: the clock" in note for note in trace.notes)


@pytest.mark.parametrize("order", [(0, 1, 3, 2, 4, 5), (5, 4, 3, 2, 1, 0), (3, 0, 5, 1, 4, 2)])
def test_lines_in_any_order_are_put_where_their_time_says(tmp_path: Path, order: tuple[int, ...]) -> None:
    gpu = {"role": "target", "util": 50}
    lines = [{"t": 2 * i, "tok_s": 100 + i, "gpu": {"0": gpu | {"power_w": 10 * i}}} for i in order]
    trace = read_metrics(write(tmp_path / "m", *lines))
    assert trace.rows["start_s"].tolist() == [0, 2, 4, 6, 8, 10]
    assert trace.rows["tok_s"].tolist() == [100, 101, 102, 103, 104, 105]
    assert trace.gpus.sort_values("row")["power_w"].tolist() == [0, 10, 20, 30, 40, 50]
    assert any("lines came late" in note for note in trace.notes)


@pytest.mark.parametrize("offset_s", [0.0, 1.0])
def test_nothing_of_a_run_that_was_appended_is_mixed_into_the_first(tmp_path: Path, offset_s: float) -> None:
    first = [{"t": 2 * i, "tok_s": 100} for i in range(30)]
    second = [{"t": 2 * i + offset_s, "tok_s": 7} for i in range(20)]
    trace = read_metrics(write(tmp_path / "m", *first, *second))
    assert set(trace.rows["tok_s"]) == {100}
    assert len(trace.rows) == 30


def test_rates_of_gpus_are_read_where_nothing_else_is_told_of_them(tmp_path: Path) -> None:
    rates = {"0": 49.0, "1": 16.0}
    trace = read_metrics(
        write(tmp_path / "m", *({"t": t, "copies": {"per_gpu_d2h_gbps": rates}} for t in (0, 2)))
    )
    assert trace.gpus.groupby("gpu")["d2h_gbps"].mean().to_dict() == rates


def test_nan_is_missing_and_counted_never_zero(tmp_path: Path) -> None:
    path = write(tmp_path / "m", '{"t": 0, "tok_s": NaN, "loss": -Infinity}', '{"t": 2, "tok_s": 1e999}')
    trace = read_metrics(path)
    assert trace.rows[["tok_s", "loss"]].isna().all().all()
    assert any("2 values are NaN or infinite" in note for note in trace.notes)
    assert any("tok_s cannot be used in 1 lines" in note for note in trace.notes)


def test_what_cannot_be_true_is_missing(tmp_path: Path) -> None:
    odd = {"t": 2, "q": {"pre": {"get_wait_frac": 1.5}, "hs": 7}, "budget": True, "split": [0, 1]}
    trace = read_metrics(write(tmp_path / "m", {"t": 0}, {**odd, "target": {"fwd_s": -1}}))
    assert trace.rows[["q.pre.get_wait_frac", "budget", "target.fwd_s"]].isna().all().all()
    assert trace.split is None
    said = " ".join(trace.notes)
    for name in ("q.pre.get_wait_frac", "budget", "target.fwd_s", "split"):
        assert f"{name} cannot be used in 1 lines" in said


def test_gpus_without_names_are_told_as_unusable(tmp_path: Path) -> None:
    lines = ({"t": t, "gpu": [{"util": 9}], "copies": {"per_gpu_d2h_gbps": [5.0]}} for t in (0, 2))
    trace = read_metrics(write(tmp_path / "m", *lines))
    assert not len(trace.gpus)
    for name in ("gpu", "copies.per_gpu_d2h_gbps"):
        assert f"{name} cannot be used in 2 lines: taken as missing" in trace.notes


def test_unknown_fields_are_listed(tmp_path: Path) -> None:
    line = {
        "t": 0,
        "colour": 1,
        "target": {"fwd_s": 1, "mood": 2},
        "gpu": {"0": {"role": "target", "fan": 3}},
    }
    notes = read_metrics(write(tmp_path / "m", line, {"t": 2})).notes
    assert [note for note in notes if "not known here" in note] == [
        "fields not known here, and not used: colour, gpu.*.fan, target.mood"
    ]


def test_a_packed_file_reads_like_a_plain_one(tmp_path: Path) -> None:
    plain = write(tmp_path / "m.jsonl", {"t": 0, "tok_s": 5}, {"t": 2, "tok_s": 6})
    packed = tmp_path / "m.jsonl.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert read_metrics(packed).rows.equals(read_metrics(plain).rows)
    assert read_metrics(packed).sha256 == hashlib.sha256(packed.read_bytes()).hexdigest()


def test_a_packed_file_that_breaks_off_keeps_what_came_before(tmp_path: Path) -> None:
    lines = "".join(json.dumps({"t": 2 * i, "loss": i**0.5}) + "\n" for i in range(20_000))
    path = tmp_path / "m.gz"
    path.write_bytes(gzip.compress(lines.encode())[:-1000])
    trace = read_metrics(path)
    assert 1000 < len(trace.rows) < 20_000
    assert any("breaks off" in bad.reason for bad in trace.bad_lines)


@pytest.mark.parametrize("content", [b"", b"\n\n", b"\xff\xfe\n", b"[1, 2]\n", b'{"loss": 1}\n'])
def test_a_file_without_one_usable_line_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "m").write_bytes(content)
    with pytest.raises(UsageError, match="no interval that can be used"):
        read_metrics(tmp_path / "m")


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read_metrics(tmp_path / "nothing")


def test_every_field_is_documented(repository: Path) -> None:
    page = (repository / "docs" / "import.md").read_text(encoding="utf-8")
    names = [f.path for f in (*line_fields, gpu_link_field)] + [f"gpu.KEY.{f.path}" for f in gpu_fields]
    missing = [name for name in names if f"`{name}`" not in page]
    assert missing == []
