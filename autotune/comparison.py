"""Throughputs of several runs pooled and compared on the log scale, with 90 % intervals.

The rule. The logarithm of a configuration's throughput is the mean over its runs. Run-to-run noise is taken
to be the same share for all configurations, so its variance is pooled over every configuration that ran
more than once; it is never taken smaller than what the windows within the runs say (their bootstrap
interval); where neither is known it is taken as `assumed_deviation`. Intervals use Student's t with the
pooled degrees of freedom, and the normal quantile where nothing ran twice. Ratios add the variances of both
sides. Pure functions; knows nothing of trials.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

normal_quantile = 1.6449  # of 95 %, so that both sides leave 90 %
assumed_deviation = 0.04  # of a run of which nobody knows how noisy it is, relative
# Student's t, 95 %, for 1, 2, … degrees of freedom; further ones come from a series that is exact to 0.1 %.
t_quantiles = (6.3138, 2.9200, 2.3534, 2.1318, 2.0150, 1.9432, 1.8946, 1.8595, 1.8331, 1.8125)


@dataclass(frozen=True, slots=True)
class Rate:
    """One run's throughput and its 90 % interval, if known, in tokens per second; all positive."""

    tokens_per_s: float
    low: float | None = None
    high: float | None = None

    @property
    def variance(self) -> float | None:
        """Of the logarithm, from the interval; None where there is none."""
        if self.low is None or self.high is None:
            return None
        return (math.log(self.high / self.low) / (2 * normal_quantile)) ** 2


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure and its 90 % interval."""

    mid: float
    low: float
    high: float

    def excludes(self, value: float) -> bool:
        return not self.low <= value <= self.high


@dataclass(frozen=True, slots=True)
class Noise:
    """Run-to-run variance of the logarithm, and the degrees of freedom behind it (0: nothing ran twice)."""

    variance: float
    freedom: int

    @property
    def quantile(self) -> float:
        return t_quantile(self.freedom) if self.freedom else normal_quantile


def measure_noise(groups: Mapping[int, Sequence[Rate]]) -> Noise:
    """The run-to-run noise over configurations, each a group of runs."""
    squares, freedom = 0.0, 0
    for rates in groups.values():
        logs = [math.log(rate.tokens_per_s) for rate in rates]
        mean = fmean(logs)
        squares += sum((log - mean) ** 2 for log in logs)
        freedom += len(logs) - 1
    return Noise(squares / freedom if freedom else 0.0, freedom)


def measure_fresh_noise(groups: Mapping[int, Sequence[Rate]]) -> Noise:
    """That of runs in processes of their own; the assumed one before any configuration had two."""
    noise = measure_noise(groups)
    return noise if noise.freedom else Noise(assumed_deviation**2, 0)


def pool(rates: Sequence[Rate], noise: Noise) -> Interval:
    """The throughput of a configuration over its runs."""
    return _interval(_log(rates), _variance(rates, noise), noise)


def compare(ours: Sequence[Rate], theirs: Sequence[Rate], noise: Noise) -> Interval:
    """How many times as fast `ours` is as `theirs`."""
    return _interval(_log(ours) - _log(theirs), _variance(ours, noise) + _variance(theirs, noise), noise)


def t_quantile(freedom: int) -> float:
    """The 95 % quantile of Student's t with `freedom` ≥ 1 degrees of freedom."""
    if freedom <= len(t_quantiles):
        return t_quantiles[freedom - 1]
    z = normal_quantile
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def _log(rates: Sequence[Rate]) -> float:
    return fmean(math.log(rate.tokens_per_s) for rate in rates)


def _variance(rates: Sequence[Rate], noise: Noise) -> float:
    """Of the mean logarithm: the pooled noise, with the noise within the runs as its floor."""
    within = [rate.variance for rate in rates if rate.variance is not None]
    if not within and not noise.freedom:
        return assumed_deviation**2 / len(rates)
    return max(noise.variance, fmean(within) if within else 0.0) / len(rates)


def _interval(log: float, variance: float, noise: Noise) -> Interval:
    reach = noise.quantile * math.sqrt(variance)
    return Interval(math.exp(log), math.exp(log - reach), math.exp(log + reach))
