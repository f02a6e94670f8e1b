"""Swapping is named when the run's own memory causes it and throughput falls; 80 % of the limit warns."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from dflash.contract.arrowlog import ArrowLog, read_log
from dflash.contract.events import sample_schema
from profiler.diagnosis import diagnose
from profiler.finding import Diagnosis, Finding
from profiler.run import Run
from profiler.timeline import Timeline
from tests.played_pipeline import play
from tests.run_builder import nanoseconds, start_ns

cause = "host-memory-exhausted-swapping"
GB = 1e9
onset_s = 250.0  # of runs that otherwise take 480 s
Curve = Callable[[float], float]


def stretch(path: Path, factor: float) -> None:
    """Play the events after the onset slower by a factor, as if every page had to come from disk."""
    file = path / "events" / "trainer.arrow"
    table, _ = read_log(file)

    def later(t_ns: np.ndarray) -> np.ndarray:
        over = np.maximum(t_ns - nanoseconds(onset_s), 0)
        return t_ns + over * (factor - 1)

    starts = table["t_ns"].to_numpy()
    lengths = table["dur_ns"].to_numpy(zero_copy_only=False)
    lengths = later(starts + np.nan_to_num(lengths)) - later(starts) + 0 * lengths
    table = table.set_column(0, "t_ns", pa.array(later(starts).astype(np.int64)))
    table = table.set_column(1, "dur_ns", pa.array(lengths, from_pandas=True).cast(pa.int64(), safe=False))
    file.unlink()
    log = ArrowLog(file, table.schema)
    for row in table.to_pylist():
        log.append(tuple(row.values()))
    log.close()


def sample_host(
    path: Path,
    used: Curve,
    *,
    swap_rate: float = 0.0,
    own_swap: float = 0.0,
    limit: float | None = 2 * GB,
    until_s: float = 1400.0,
) -> None:
    """What the host sampler would have read."""
    for old in (path / "samples").glob("*.arrow"):
        old.unlink()
    log = ArrowLog(path / "samples" / "host.arrow", sample_schema)

    def read(at_s: float, key: str, metric: str, value: float) -> None:
        log.append((nanoseconds(at_s), "host", key, metric, value, None))

    if limit is not None:
        read(0, "machine", "mem_limit_bytes", limit)
    read(0, "machine", "swap_in_bytes", 5e9)  # since boot
    read(0, "machine", "swap_out_bytes", 7e9)
    for at_s in np.arange(0.0, until_s, 2.0):
        read(at_s, "tree", "rss_anon_bytes", 0.25 * used(at_s))
        read(at_s, "tree", "rss_shmem_bytes", 0.75 * used(at_s))
        read(at_s, "tree", "swap_bytes", own_swap)
        if swap_rate and at_s > onset_s:
            read(at_s, "machine", "swap_out_bytes", 7e9 + swap_rate * (at_s - onset_s))
    log.close()


def look(path: Path) -> tuple[Diagnosis, Finding]:
    diagnosis = diagnose(Timeline.of(Run.open(path)))
    return diagnosis, next(f for f in diagnosis.findings if f.cause == cause)


def rising(at_s: float) -> float:
    return min(0.3 * GB + 6e6 * at_s, 1.9 * GB)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return play(tmp_path / "run", targets=1, windows=80, preset="host", depth=60)


@pytest.mark.parametrize("factor", [1.5, 4.0, 8.0])
def test_swapping_that_slows_the_run_down_is_the_cause(run: Path, factor: float) -> None:
    stretch(run, factor)
    sample_host(run, rising, swap_rate=800e6, until_s=480 + 230 * (factor - 1))
    diagnosis, finding = look(run)
    assert diagnosis.primary == finding
    assert finding.measured_cost_share == pytest.approx(1 - 1 / factor, abs=0.08)
    assert finding.range_s[0] == pytest.approx(onset_s, abs=3)
    assert finding.remedy is not None
    assert finding.remedy.knobs["transport.preset"] == "peer"
    values = {item.name: item.value for item in finding.evidence}
    assert values["swap traffic since it began"] == pytest.approx(800e6, rel=0.1)
    assert values["run's memory of its limit at most"] == pytest.approx(0.9, abs=0.05)


def test_near_the_limit_without_swapping_is_a_warning_and_no_sickness(run: Path) -> None:
    sample_host(run, rising)
    diagnosis, finding = look(run)
    assert (finding.verdict, finding.measured_cost_share) == ("rejected", 0.0)
    (warning,) = [text for text in diagnosis.warnings if "host memory" in text]
    assert warning.startswith("host memory reached 95 % of its limit of 2 GB")


@pytest.mark.parametrize(("share", "warned"), [(0.79, False), (0.81, True)])
def test_the_warning_begins_at_four_fifths(run: Path, share: float, warned: bool) -> None:
    sample_host(run, lambda _: share * 2 * GB)
    assert any("host memory" in text for text in look(run)[0].warnings) == warned


def test_a_neighbours_swapping_is_not_blamed_on_the_run(run: Path) -> None:
    stretch(run, 4.0)
    sample_host(run, lambda _: 0.3 * GB, swap_rate=800e6)
    _, finding = look(run)
    assert finding.verdict == "rejected"
    assert "somebody else" in finding.summary


def test_swapping_that_costs_nothing_is_not_named(run: Path) -> None:
    sample_host(run, rising, swap_rate=800e6)
    assert look(run)[1].verdict == "rejected"


def test_a_trickle_is_no_swapping(run: Path) -> None:
    stretch(run, 4.0)
    sample_host(run, rising, swap_rate=1e6)
    assert look(run)[1].measured_cost_share == 0.0


@pytest.mark.parametrize("what", ["nothing sampled", "no limit known", "swapping all along"])
def test_what_cannot_be_known_is_said(run: Path, what: str) -> None:
    if what == "nothing sampled":
        for old in (run / "samples").glob("*.arrow"):
            old.unlink()
    elif what == "no limit known":
        stretch(run, 4.0)
        sample_host(run, rising, swap_rate=800e6, limit=None)
    else:
        sample_host(run, rising, swap_rate=800e6)
        shift_samples(run, -onset_s)
    diagnosis, finding = look(run)
    if what == "no limit known":  # the tell-tale is missing: less sure, and no share is made up
        assert finding.supported
        assert finding.confidence < 0.85
        assert any(item.value is None and "limit" in item.name for item in finding.evidence)
    else:
        assert finding.verdict == "not_enough_evidence"
        assert finding.measured_cost_share is None
        assert finding.measured_cost_reason
    assert not any("host memory reached 0 %" in text for text in diagnosis.warnings)


def shift_samples(path: Path, by_s: float) -> None:
    file = path / "samples" / "host.arrow"
    table, _ = read_log(file)
    file.unlink()
    log = ArrowLog(file, table.schema)
    for row in table.to_pylist():
        log.append((max(row.pop("t_ns") + round(by_s * 1e9), start_ns), *row.values()))
    log.close()
