"""Searches with real recorders, killed at random moments: nothing is lost, repeated or left over.

The same as `python -m benchmarks.killed_searches --searches 30`, which takes a quarter of an hour.
"""

import pytest

from benchmarks.killed_searches import play


@pytest.mark.slow
def test_killed_searches_and_trials_lose_and_leave_nothing(tmp_path):
    tally = play(tmp_path, searches=1, seed=3)
    assert tally.is_clean, tally
    assert tally.searches_killed == 1
    assert tally.trials_killed >= 1
    assert tally.finished_trials >= 5
