"""A surface over trials: what was measured is believed, what was not is inferred, with doubt."""

import itertools
import math
import random

import numpy as np
import pytest

from autotune.surface import Reading, Surface

choices = {
    "transport.preset": ("host", "peer"),
    "transport.depth": (1, 2, 4),
    "pipeline.split": ("1-1", "2-1", "3-1"),
}
effects = {"host": 0.0, "peer": 0.4, 1: 0.0, 2: 0.05, 4: 0.06, "1-1": 0.0, "2-1": 0.25, "3-1": 0.3}
every = [dict(zip(choices, point, strict=True)) for point in itertools.product(*choices.values())]


def truth(values):
    return 9.0 + sum(effects[choice] for choice in values.values())


def read(values, noise=0.0, against=None):
    told = truth(values) - (truth(against) if against else 0.0)
    return Reading(values=values, log_rate=told + noise, deviation=0.005, against=against)


def readings_of(count, seed=0, noise=0.01):
    generator = random.Random(seed)
    return [read(values, generator.gauss(0, noise)) for values in generator.sample(every, count)]


def test_a_measured_configuration_is_believed_and_an_unmeasured_one_inferred():
    readings = readings_of(12)
    surface = Surface(choices, readings)
    mean, covariance = surface.at(every)
    off = [abs(m - truth(values)) for m, values in zip(mean, every, strict=True)]
    assert max(off) < 0.1
    tried = [values in [reading.values for reading in readings] for values in every]
    spread = np.sqrt(covariance.diagonal())
    assert spread[tried].mean() < spread[np.logical_not(tried)].mean()


def test_intervals_hold_the_truth_about_as_often_as_they_say():
    inside = total = 0
    for seed in range(12):
        mean, covariance = Surface(choices, readings_of(9, seed, 0.02)).at(every)
        reach = 1.645 * np.sqrt(covariance.diagonal())
        inside += sum(abs(m - truth(v)) <= r for m, v, r in zip(mean, every, reach, strict=True))
        total += len(every)
    assert inside / total >= 0.8


def test_a_ratio_within_one_run_tells_more_than_two_runs():
    ours, theirs = every[0], every[3]
    rest = readings_of(8, 1, 0.04)
    two = [read(ours, 0.03), read(theirs, -0.03)]
    paired = [read(ours, against=theirs)]

    def doubt(readings):
        _, covariance = Surface(choices, readings).at([ours, theirs])
        return math.sqrt(covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1])

    assert doubt([*rest, *two, *paired]) < 0.5 * doubt([*rest, *two])


def test_the_slope_of_the_cost_is_its_slope():
    surface = Surface(choices, [*readings_of(8), read(every[0], against=every[5])])
    at = surface._means + 0.2
    slope = surface._cost(at)[1]
    step = 1e-5
    told = [
        (surface._cost(at + step * axis)[0] - surface._cost(at - step * axis)[0]) / (2 * step)
        for axis in np.eye(len(at))
    ]
    assert slope == pytest.approx(told, rel=1e-4, abs=1e-6)


def test_leaving_a_configuration_out_forgets_its_own_runs():
    readings = [*readings_of(10), read(every[0], 0.5)]
    surface = Surface(choices, readings)
    assert abs(surface.at([every[0]])[0][0] - truth(every[0])) > 0.05
    told, deviation = surface.leave_out(every[0])
    assert abs(told - truth(every[0])) < 3 * deviation
    assert Surface(choices, [read(every[0])]).leave_out(every[0]) is None


def test_the_same_readings_say_the_same():
    first, second = (Surface(choices, readings_of(6)).at(every) for _ in range(2))
    assert first[0].tolist() == second[0].tolist()
    assert first[1].tolist() == second[1].tolist()
