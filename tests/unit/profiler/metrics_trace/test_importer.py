"""An imported run says what its file says, and the rules name what the file's label names."""

from __future__ import annotations

import gzip
import hashlib
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dflash.contract.errors import RunError
from dflash.contract.rundir import RunDir
from profiler.diagnosis import diagnose
from profiler.examination import examine_run
from profiler.finding import Diagnosis
from profiler.metrics_trace.importer import import_metrics
from profiler.run import Run
from profiler.timeline import Timeline
from reports.run_report import render_run

scenarios = Path(__file__).parents[3] / "data" / "cases" / "scenarios"
labels: dict[str, dict[str, Any]] = json.loads((scenarios / "labels.json").read_text())


def source_of(name: str) -> Path:
    return next(scenarios.glob(f"{name}.jsonl*"))


def lines_of(name: str) -> list[dict[str, Any]]:
    path = source_of(name)
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return [json.loads(line) for line in data.splitlines()]


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """`imported(name)`: run, timeline and diagnosis of a scenario; each is imported once."""
    base = tmp_path_factory.mktemp("imported")

    @lru_cache
    def make(name: str) -> tuple[Run, Timeline, Diagnosis]:
        import_metrics(source_of(name), base / name)
        run = Run.open(base / name)
        timeline = Timeline.of(run)
        return run, timeline, diagnose(timeline)

    return make


@pytest.mark.parametrize("name", sorted(labels))
def test_the_labelled_cause_is_named_first_and_no_forbidden_one(imported: Any, name: str) -> None:
    """C116 among others: s03 is the GIL, s02 must not be called so."""
    label = labels[name]
    diagnosis: Diagnosis = imported(name)[2]
    assert diagnosis.primary is not None
    assert diagnosis.primary.cause == label["primary"]
    named = {finding.cause for finding in diagnosis.findings if finding.supported}
    assert not named & set(label["must_not_name"])
    assert diagnosis.primary.remedy is not None
    assert not diagnosis.primary.remedy.knobs, "another trainer has none of our knobs"


@pytest.mark.parametrize("name", ["s02", "s05", "s12", "s14"])
def test_throughput_is_the_mean_of_the_file(imported: Any, name: str) -> None:
    _, timeline, diagnosis = imported(name)
    lo_s, hi_s = timeline.range_s
    used = [row["tok_s"] for row in lines_of(name) if lo_s <= row["t"] < hi_s]
    assert diagnosis.throughput.tokens_per_s == pytest.approx(np.mean(used), rel=1e-3)


def figures(diagnosis: Diagnosis) -> dict[str, float | None]:
    assert diagnosis.primary is not None
    return {evidence.name: evidence.value for evidence in diagnosis.primary.evidence}


def test_evidence_has_the_numbers_of_the_file(imported: Any) -> None:
    found = figures(imported("s02")[2])
    assert found["one copy on the target's own thread"] == pytest.approx(1.90, rel=0.03)
    assert found["rate of the targets' copies"] == pytest.approx(1.70, rel=0.03)
    assert found["drafters waiting for targets"] == pytest.approx(0.85, abs=0.005)
    found = figures(imported("s04")[2])
    assert found["targets waiting for q_pre"] == pytest.approx(0.55, abs=0.005)
    found = figures(imported("s05")[2])
    step_s = 6.9 * (1 - 0.06)  # without its waits for the GIL
    assert found["drafters alone"] == pytest.approx(65536 / step_s, rel=0.02)
    found = figures(imported("s01")[2])
    assert found["one move"] == pytest.approx(10.9, rel=0.05)
    assert found["takes from another device"] == pytest.approx(0.5, abs=0.03)
    found = figures(imported("s12")[2])
    assert found["one copy on the drafter's own thread"] == pytest.approx(2.1, rel=0.05)


def test_closing_sums_add_up_and_queues_know_their_capacity(imported: Any) -> None:
    _, timeline, diagnosis = imported("s05")
    assert len(diagnosis.closing_sums) == 4
    for closing in diagnosis.closing_sums:
        assert sum(part.seconds for part in closing.parts) == pytest.approx(closing.range_s)
    depths = timeline.depths.set_index("channel")
    assert depths.loc["q_hs", "capacity"] == 20
    assert depths.loc["q_pre", "capacity"] == 50


def total(timeline: Timeline, metric: str, key: str) -> float:
    rows = timeline.series(metric)
    return float(np.ptp(rows.loc[rows["key"] == key, "value"]))


def test_what_later_rules_need_is_in_the_samples(imported: Any) -> None:
    _, gil, _ = imported("s03")
    key = next(k for k in gil.series("gil_wait_samples")["key"] if k.endswith(":target 0"))
    share = total(gil, "gil_wait_samples", key) / total(gil, "gil_sweeps", "*")
    assert share == pytest.approx(0.58, abs=0.01)
    swapped = imported("s07")[0].samples
    swapped = swapped[swapped["metric"].isin(["swap_in_bytes", "swap_out_bytes"])]
    rates = [row["host"]["swap_mib_s"] for row in lines_of("s07")]
    wanted = 2 * 2**20 * sum(rates)
    assert swapped.groupby("metric", observed=True)["value"].max().sum() == pytest.approx(wanted)
    assert imported("s08")[1].compiles["recompiles"].sum() == pytest.approx(49, abs=1)
    rate = imported("s10")[1].series("d2h_gb_per_s")
    means = rate[rate["key"] != "*"].groupby("key", observed=True)["value"].mean()
    assert means.round().tolist() == [49, 16, 17]
    _, small, _ = imported("s13")
    assert small.series("launches_per_s")["value"].mean() == pytest.approx(41_000, rel=0.01)
    power = small.series("power_w").groupby("key", observed=True)["value"].mean()
    assert power["gpu:0"] == pytest.approx(160, abs=3)
    assert set(small.series("power_limit_w")["value"]) == {600.0}


def test_the_manifest_says_where_the_run_comes_from(imported: Any) -> None:
    run, _, _ = imported("s16")
    manifest = run.manifest
    assert manifest["imported"]["sha256"] == hashlib.sha256(source_of("s16").read_bytes()).hexdigest()
    assert manifest["imported"]["source"] == str(source_of("s16"))
    assert (manifest["status"], manifest["emulated"], manifest["config"]) == ("finished", False, None)
    assert manifest["devices"][0] == {"name": "gpu:0", "role": "target", "index": 0, "uuid": "gpu:0"}


@pytest.mark.parametrize("name", ["s01", "s04", "s12"])
def test_a_cause_whose_times_a_trace_does_not_tell_is_priced_as_it_was_measured(
    imported: Any, name: str
) -> None:
    primary = imported(name)[2].primary
    cost = primary.measured_cost_share
    assert cost > 0.1
    assert primary.predicted_gain == pytest.approx(cost / (1 - cost))


def test_an_imported_run_has_a_report(imported: Any) -> None:
    html = render_run(examine_run(imported("s12")[0]))
    assert "Batches pile up in host memory" in html


def import_lines(tmp_path: Path, lines: list[dict[str, Any]]) -> tuple[Timeline, tuple[str, ...]]:
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    imported_run = import_metrics(path, tmp_path / "run")
    return Timeline.of(Run.open(tmp_path / "run")), imported_run.notes


def test_a_file_of_times_alone_tells_nothing_and_breaks_nothing(tmp_path: Path) -> None:
    timeline, notes = import_lines(tmp_path, [{"t": 2 * i} for i in range(40)])
    diagnosis = diagnose(timeline)
    assert diagnosis.primary is not None
    assert diagnosis.primary.cause == "not-enough-data"
    assert diagnosis.throughput.tokens_per_s is None
    assert len(timeline.depths) == len(timeline.takes) == len(timeline.samples) == 0
    assert any("no split is told" in note for note in notes)
    assert set(notes) <= set(timeline.warnings)


@pytest.mark.parametrize(
    "left_out", ["tok_s", "budget", "split", "q", "target", "drafter", "gpu", "host", "gil"]
)
def test_any_part_may_be_missing(tmp_path: Path, left_out: str) -> None:
    lines = [{k: v for k, v in row.items() if k != left_out} for row in lines_of("s14")[:60]]
    timeline, _ = import_lines(tmp_path, lines)
    diagnosis = diagnose(timeline)
    named = {finding.cause for finding in diagnosis.findings if finding.supported}
    assert named <= {"not-enough-data", "target-bound-healthy"}


def test_no_window_spans_a_gap(tmp_path: Path) -> None:
    lines = [row for row in lines_of("s14")[:90] if not 40 <= row["t"] < 100]
    timeline, notes = import_lines(tmp_path, lines)
    assert timeline.windows["seconds"].tolist() == pytest.approx([2.0] * 58)
    assert any("1 gaps" in note for note in notes)


def test_a_run_is_never_overwritten(tmp_path: Path) -> None:
    import_metrics(source_of("s16"), tmp_path / "run")
    with pytest.raises(RunError, match="never overwritten"):
        import_metrics(source_of("s16"), tmp_path / "run")
    assert RunDir(tmp_path / "run").manifest()["status"] == "finished"
