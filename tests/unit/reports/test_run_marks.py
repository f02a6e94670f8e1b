from __future__ import annotations

import dataclasses

import pandas as pd
import pytest

from profiler.diagnosis import diagnose
from profiler.finding import Diagnosis
from profiler.idle_gaps import gap_columns
from profiler.run import Run
from profiler.timeline import Timeline
from reports.run_marks import list_views, mark_lanes, mark_spans
from tests.played_pipeline import play


@pytest.fixture(scope="module")
def timeline(tmp_path_factory: pytest.TempPathFactory) -> Timeline:
    path = tmp_path_factory.mktemp("runs") / "run"
    return Timeline.of(Run.open(play(path, targets=2, preset="host", target_copy_s=0.5, windows=30)))


@pytest.fixture(scope="module")
def diagnosis(timeline: Timeline) -> Diagnosis:
    return diagnose(timeline)


def with_gaps(timeline: Timeline, *gaps: tuple[str, float, float]) -> Timeline:
    rows = [
        {"key": name, "device": name, "role": "target", "index": 0, "start_s": a, "end_s": b,
         "seconds": b - a, "common": False, "evidence": "power"}
        for name, a, b in gaps
    ]  # fmt: skip
    return dataclasses.replace(timeline, idle_gaps=pd.DataFrame(rows, columns=gap_columns))


def narrowed(diagnosis: Diagnosis, start_s: float, end_s: float) -> Diagnosis:
    first, *rest = diagnosis.findings
    return dataclasses.replace(
        diagnosis, findings=(dataclasses.replace(first, range_s=(start_s, end_s)), *rest)
    )


def test_every_supported_cause_and_every_idle_gpu_has_a_lane(
    timeline: Timeline, diagnosis: Diagnosis
) -> None:
    gapped = with_gaps(timeline, ("cuda:0", 10.0, 11.0), ("cuda:1", 20.0, 20.5), ("cuda:0", 30.0, 31.0))
    lanes = {lane.name: lane.pieces_s for lane in mark_lanes(gapped, diagnosis)}
    assert lanes == {
        **{f.cause: (f.range_s,) for f in diagnosis.findings if f.supported},
        "cuda:0 stood still": ((10.0, 11.0), (30.0, 31.0)),
        "cuda:1 stood still": ((20.0, 20.5),),
    }


def test_very_many_gpus_share_a_lane(timeline: Timeline, diagnosis: Diagnosis) -> None:
    gapped = with_gaps(timeline, *((f"cuda:{n}", n, n + 0.5) for n in range(9)))
    assert [len(lane.pieces_s) for lane in mark_lanes(gapped, diagnosis)][-1] == 9


def test_a_cause_of_all_the_time_is_no_band_and_one_of_a_part_is(
    timeline: Timeline, diagnosis: Diagnosis
) -> None:
    assert diagnosis.primary is not None
    cause = diagnosis.primary.cause
    assert cause not in [span.name for span in mark_spans(timeline, diagnosis)]
    start, _ = timeline.range_s
    partial = narrowed(diagnosis, start, start + 3.0)
    assert [(s.start_s, s.end_s) for s in mark_spans(timeline, partial) if s.name == cause] == [
        (start, start + 3.0)
    ]


def test_views_are_the_measured_time_partial_causes_and_the_longest_gaps(
    timeline: Timeline, diagnosis: Diagnosis
) -> None:
    start, _ = timeline.range_s
    gapped = with_gaps(timeline, ("a", 1.0, 1.2), ("b", 50.0, 52.0), ("c", 9.0, 9.9))
    views = list_views(gapped, narrowed(diagnosis, start, start + 3.0))
    assert [view.words.split()[0] for view in views] == ["measured", diagnosis.findings[0].cause, "b", "c"]
    assert (views[2].start_s, views[2].end_s) == (42.0, 60.0)
    assert views[3].start_s >= 0
