"""Speed, memory and energy: which configurations nothing beats, and what cannot be compared."""

import pytest

from autotune.comparison import measure_noise
from autotune.lessons.tradeoffs import weigh
from autotune.recommendation import find_rates, rank
from autotune.telemetry import MemoryFigures


@pytest.fixture
def weighed(space, trial_of, measurement_of):
    """Weigh configurations given as (tokens/s, share of 80 GB, joules a token)."""

    def make(*rows, emulated=False, limit=80e9, repeats=()):
        trials = []
        for number, (speed, share, energy) in enumerate([*rows, *(row for _, row in repeats)]):
            memory = {"host": MemoryFigures(peak_bytes=500e9, limit_bytes=501e9)}
            if share is not None:
                memory["cuda:0"] = MemoryFigures(peak_bytes=share * 80e9, limit_bytes=limit)
                memory["cuda:1"] = MemoryFigures(peak_bytes=1e9, limit_bytes=limit)
            told = measurement_of(
                speed, memory=memory if share is not None else {}, energy_j_per_token=energy
            )
            of = None if number < len(rows) else repeats[number - len(rows)][0]
            values = space.configurations[number if of is None else of]
            trials.append(trial_of(number, values, speed, measurement=told, repeat_of=of))
        rates = find_rates(trials)
        return weigh(rank(trials, rates, measure_noise(rates)), trials, emulated=emulated)

    return make


def best(told):
    return {row.trial for row in told.configurations if row.is_best}


def test_what_something_beats_in_everything_is_not_best(weighed):
    told = weighed((100, 0.5, 1.0), (120, 0.9, 1.2), (90, 0.6, 1.1), (80, 0.4, 2.0))
    assert best(told) == {0, 1, 3}
    assert [row.trial for row in told.configurations] == [1, 0, 2, 3]
    assert told.memory_reason is told.energy_reason is None


def test_the_fullest_gpu_counts_and_not_the_host(weighed):
    row = weighed((100, 0.5, 1.0)).configurations[0]
    assert (row.place, row.peak_share) == ("cuda:0", pytest.approx(0.5))


def test_the_worst_run_tells_memory_and_the_mean_energy(weighed):
    row = weighed((100, 0.5, 1.0), repeats=[(0, (101, 0.7, 3.0))]).configurations[0]
    assert row.peak_share == pytest.approx(0.7)
    assert row.energy_j_per_token == pytest.approx(2.0)


def test_energy_that_some_do_not_show_is_compared_for_none(weighed):
    told = weighed((100, 0.5, 1.0), (90, 0.6, None))
    assert told.energy_reason == "1 of 2 configurations do not show their energy"
    assert best(told) == {0}


def test_without_limits_bytes_are_compared(weighed):
    told = weighed((100, 0.5, None), (90, 0.3, None), (80, 0.4, None), limit=None)
    assert best(told) == {0, 1}
    assert told.configurations[0].peak_share is None
    assert told.configurations[0].peak_bytes == pytest.approx(40e9)
    assert told.energy_reason == "no trial shows its energy"


def test_logical_devices_have_a_reason_of_their_own(weighed):
    told = weighed((100, None, None), (90, None, None), emulated=True)
    assert told.energy_reason == "logical devices have no power readings"
    assert told.memory_reason == "no trial shows its memory"
    assert best(told) == {0}


def test_nothing_to_weigh_says_so(weighed):
    assert weighed().energy_reason == "no trial may be compared"
