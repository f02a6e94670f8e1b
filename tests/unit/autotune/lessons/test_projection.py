"""The recommended run on more devices: splits by the forecast, with intervals and doubts."""

from itertools import pairwise

import pytest

from autotune.lessons.projection import clearly, project
from tests.played_pipeline import play


@pytest.fixture(scope="module")
def projections(tmp_path_factory):
    """Of a pipeline 3-1 whose targets take four times as long as its drafter."""
    run = tmp_path_factory.mktemp("runs") / "run"
    return project(play(run, targets=3, drafters=1, forward_s=0.9, backward_s=0.1, windows=20))


def test_twice_as_many_devices_get_a_split_that_uses_them(projections):
    assert projections.reason is None
    told = projections.splits[0]
    assert {each.devices for each in projections.splits} == {8}
    targets, drafters = map(int, told.split.split("-"))
    assert targets + drafters == 8
    assert targets > drafters, "the targets are what is slow"
    assert 1.5 < told.ratio.mid < 7 / 3 + 0.2
    assert told.ratio.low < told.ratio.mid < told.ratio.high
    assert any("no run had" in doubt for doubt in told.doubts)


def test_two_devices_are_told_for_four_and_for_eight(tmp_path):
    told = project(play(tmp_path / "run", targets=1, drafters=1, windows=20))
    apart = [each for each in told.splits if "colocated" not in each.split]
    assert [each.devices for each in apart] == [4, 8]
    assert apart[0].ratio.mid < apart[1].ratio.mid


def test_shared_devices_are_told_only_where_they_are_clearly_ahead(projections):
    assert ["colocated" in each.split for each in projections.splits] == [False, True]
    for before, after in pairwise(projections.splits):
        if before.devices == after.devices:
            assert after.ratio.mid > clearly * before.ratio.mid


def test_what_is_no_run_has_a_reason_instead(tmp_path):
    assert project(tmp_path / "nowhere").splits == ()
    assert "not a run directory" in project(tmp_path / "nowhere").reason
