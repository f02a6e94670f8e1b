"""Recompilations are named when they go on after warm-up, and only then."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from dflash.contract.arrowlog import ArrowLog
from dflash.contract.events import event_schema
from profiler.compiles import CompileStretch, find_stretch, measure_scatter
from profiler.diagnosis import diagnose
from profiler.finding import Diagnosis, Finding
from profiler.rules.recompiles_from_varying_shapes import least_sure_cost
from profiler.run import Run
from profiler.steady import read_windows
from profiler.timeline import Timeline
from tests.played_pipeline import play
from tests.run_builder import RunBuilder, start_ns

cause = "recompiles-from-varying-shapes"


def compile_inside(
    path: Path, *, part: float, first: int = 0, last: int = 0, chosen: Sequence[int] = (), target: int = 0
) -> None:
    """Put a compilation at the start of a target's forwards number first to last, taking `part` of each.

    `chosen`: these instead.
    """
    events = Run.open(path).events
    spans = events[
        (events["stage"] == "target") & (events["name"] == "forward") & (events["index"] == target)
    ]
    log = ArrowLog(path / "events" / f"compiles-{target}.arrow", event_schema)
    taken = spans.iloc[list(chosen)] if chosen else spans.iloc[first:last]
    for count, span in enumerate(taken.to_dict("records"), start=1):
        shared = {name: span[name] for name in ("t_ns", "stage", "index", "device", "clock", "tid")}
        rows = [
            {**shared, "kind": "span", "name": "compile", "dur_ns": int(span["dur_ns"] * part)},
            {**shared, "kind": "gauge", "name": "recompiles", "value": float(count)},
        ]
        for row in rows:
            log.append(tuple(row.get(name) for name in event_schema.names))
    log.close()


def stretch_of(path: Path, compiling: range, tokens: int, secs: float = 0.1) -> CompileStretch | None:
    """Of 40 windows of 10 s and 1,000 tokens, those in `compiling` begin with one and have `tokens`."""
    builder = RunBuilder(path)
    for number in range(40):
        builder.window(number, 10.0 * (number + 1), tokens if number in compiling else 1000)
    for count, number in enumerate(compiling, start=1):
        builder.span("drafter", 0, "compile", 10.0 * number + 1, 10.0 * number + 1 + secs)
        builder.gauge("drafter", 0, "recompiles", 10.0 * number + 1, count)
    run = Run.open(builder.finish())
    windows, _ = read_windows(run.events)
    return find_stretch(run.events, windows, start_ns, start_ns + 400 * 10**9, start_ns)


def look(path: Path) -> tuple[Timeline, Diagnosis, Finding]:
    timeline = Timeline.of(Run.open(path))
    diagnosis = diagnose(timeline)
    return timeline, diagnosis, next(f for f in diagnosis.findings if f.cause == cause)


@pytest.mark.parametrize("part", [0.2, 0.5, 0.9])
def test_compiling_again_and_again_is_the_cause(tmp_path: Path, part: float) -> None:
    """C117."""
    path = play(tmp_path / "run", targets=1, windows=40)
    compile_inside(path, part=part, first=0, last=10**6)
    timeline, diagnosis, finding = look(path)
    assert diagnosis.primary == finding
    # Without it the drafter would set the pace, at a fifth of the time that a forward takes.
    assert finding.measured_cost_share == pytest.approx(min(part, 0.8), abs=0.1)
    evidence = {item.name: item.value for item in finding.evidence}
    assert evidence["recompilations after warm-up"] == pytest.approx(
        6 * timeline.steady.windows_used, rel=0.3
    )
    assert evidence["drafters compiling"] == 0
    assert not [text for text in timeline.warnings if "overlap" in text]


def test_compiling_in_the_first_steps_is_warm_up(tmp_path: Path) -> None:
    """C117."""
    path = play(tmp_path / "run", targets=1, windows=40)
    compile_inside(path, part=0.9, first=0, last=8)  # of 240 forwards; warm-up is the first 12
    _, diagnosis, finding = look(path)
    assert finding.verdict == "rejected"
    assert diagnosis.primary is not None
    assert diagnosis.primary.cause == "target-bound-healthy"


few = {"windows": 20, "batches_per_window": 2}  # 40 forwards of 1 s


def test_a_burst_of_long_compilations_is_no_pattern(tmp_path: Path) -> None:
    path = play(tmp_path / "run", targets=1, **few)
    compile_inside(path, part=1.0, first=22, last=26)
    _, diagnosis, finding = look(path)
    assert finding.measured_cost_share == pytest.approx(0.12, abs=0.02)
    assert finding.verdict == "rejected"
    assert "fell into few parts of the time" in finding.summary
    assert diagnosis.primary is None, "nor is anything else to blame"


def test_the_same_compilations_spread_over_the_run_are_one(tmp_path: Path) -> None:
    path = play(tmp_path / "run", targets=1, **few)
    compile_inside(path, part=1.0, chosen=(10, 18, 26, 34))
    timeline, diagnosis, finding = look(path)
    assert timeline.compile_stretch is None, "when so few began and ended is chance"
    assert diagnosis.primary == finding
    assert finding.measured_cost_share == pytest.approx(0.12, abs=0.02)
    assert "Stages compile anew" in diagnosis.headline
    evidence = {item.name: item.value for item in finding.evidence}
    assert evidence["recompilations after warm-up"] == 4
    sure = evidence["lost at least, if it goes on so"]
    assert sure is not None
    assert least_sure_cost < sure < 0.6 * finding.measured_cost_share


@pytest.mark.parametrize("part", [0.1, 0.6])
def test_a_few_short_compilations_cost_little(tmp_path: Path, part: float) -> None:
    path = play(tmp_path / "run", targets=1, **few)
    compile_inside(path, part=part, chosen=(10, 18, 26, 34))
    _, _, finding = look(path)
    assert finding.verdict == "rejected"
    assert finding.measured_cost_share == pytest.approx(0.12 * part, abs=0.02)


def test_targets_that_meet_a_new_shape_together_are_no_pattern(tmp_path: Path) -> None:
    path = play(tmp_path / "run", targets=3, drafters=2, windows=20, batches_per_window=6)
    for target in range(3):
        compile_inside(path, part=1.0, chosen=(16, 17, 26), target=target)
    _, _, finding = look(path)
    evidence = {item.name: item.value for item in finding.evidence}
    assert evidence["recompilations after warm-up"] == 9
    assert finding.measured_cost_share == pytest.approx(0.09, abs=0.01)
    assert finding.verdict == "rejected"
    assert "fell into few parts of the time" in finding.summary, "two moments say nothing of a third"


def test_the_scatter_is_the_error_of_the_mean_over_tenths(tmp_path: Path) -> None:
    def scatter(name: str, times: Sequence[float], secs: float) -> float | None:
        builder = RunBuilder(tmp_path / name)
        for count, at_s in enumerate(times, start=1):
            if secs:
                builder.span("target", 0, "compile", at_s, at_s + secs)
            builder.gauge("target", 0, "recompiles", at_s, count)
        return measure_scatter(Run.open(builder.finish()).events, None, start_ns, start_ns + 10**11, start_ns)

    assert scatter("none", (), 1.0) is None
    assert scatter("one", (55.0,), 4.0) == pytest.approx(1.0)
    assert scatter("each", [10.0 * n + 2 for n in range(10)], 3.0) == pytest.approx(0.0, abs=1e-6)
    # Half of the tenths: a deviation of as much as the mean, over ten.
    assert scatter("half", (5.0, 25.0, 45.0, 65.0, 85.0), 2.0) == pytest.approx(1 / 3)
    assert scatter("untimed", (5.0, 25.0, 45.0, 65.0, 85.0), 0.0) == pytest.approx(1 / 3)
    assert scatter("outside", (150.0,), 1.0) is None


def test_the_stretch_runs_from_the_first_recompilation_to_the_pause_after_the_last(tmp_path: Path) -> None:
    stretch = stretch_of(tmp_path / "run", range(10, 31, 5), tokens=400)
    assert stretch is not None
    assert (stretch.begin_s, stretch.end_s) == pytest.approx((101.0, 351.0))
    assert stretch.seconds == pytest.approx(0.5)
    # 26 windows of which 5 make 400 tokens: the others set the yardstick, whoever it was that compiled.
    assert stretch.lost_share == pytest.approx(1 - (21 * 1000 + 5 * 400) / 26 / 1000)


def test_compilations_that_slow_no_window_cost_nothing(tmp_path: Path) -> None:
    stretch = stretch_of(tmp_path / "run", range(5, 40, 2), tokens=1000)
    assert stretch is not None
    assert stretch.lost_share == 0.0


def test_windows_that_all_compile_are_no_comparison(tmp_path: Path) -> None:
    stretch = stretch_of(tmp_path / "run", range(0, 40), tokens=500)
    assert stretch is not None
    assert stretch.lost_share is None


def test_a_burst_has_no_stretch_of_its_own(tmp_path: Path) -> None:
    assert stretch_of(tmp_path / "run", range(10, 13), tokens=100) is None


def test_compiling_that_ends_halfway_is_told_for_its_time(tmp_path: Path) -> None:
    path = play(tmp_path / "run", targets=1, windows=40)
    compile_inside(path, part=0.3, first=0, last=120)  # of 240 forwards
    timeline, diagnosis, finding = look(path)
    assert diagnosis.primary == finding
    assert finding.measured_cost_share == pytest.approx(0.3, abs=0.05)
    events = Run.open(path).events
    last_s = (events.loc[events["name"] == "recompiles", "t_ns"].max() - timeline.start_ns) / 1e9
    assert finding.range_s == pytest.approx((timeline.range_s[0], last_s), abs=0.05 * timeline.range_s[1])


def test_a_run_without_a_compiler_lost_nothing_to_it(tmp_path: Path) -> None:
    timeline, _, finding = look(play(tmp_path / "run"))
    assert len(timeline.compiles) == 0
    assert (finding.verdict, finding.measured_cost_share) == ("rejected", 0.0)


def test_compile_time_is_counted_once_in_the_closing_sum(tmp_path: Path) -> None:
    path = play(tmp_path / "run", targets=1)
    before = Timeline.of(Run.open(path)).threads
    compile_inside(path, part=0.5, first=0, last=10**6)
    after = Timeline.of(Run.open(path)).threads
    assert before.equals(after)


def test_the_time_spent_on_tuning_kernels_is_that_of_the_range(tmp_path: Path) -> None:
    path = play(tmp_path / "run")
    timeline, _, finding = look(path)
    (untold,) = [item for item in finding.evidence if "timing kernels" in item.name]
    assert (timeline.tuning_s, untold.value) == (None, None)
    lo_ns, hi_ns = timeline.range_ns
    log = ArrowLog(path / "events" / "tuning.arrow", event_schema)
    for t_ns, value in ((lo_ns - 1, 2.0), (lo_ns + 1, 2.0), ((lo_ns + hi_ns) // 2, 2.023), (hi_ns + 1, 9.0)):
        row = {
            "t_ns": t_ns,
            "kind": "gauge",
            "name": "autotune_s",
            "stage": "trainer",
            "index": 0,
            "value": value,
        }
        log.append(tuple(row.get(name) for name in event_schema.names))
    log.close()
    timeline, _, finding = look(path)
    (told,) = [item for item in finding.evidence if "timing kernels" in item.name]
    assert timeline.tuning_s == told.value == pytest.approx(0.023)
