"""Predictions from one fit: tokens per second with an interval, what limits, and what the figures rest on.

A prediction is the measured rate times what the simulation says of the change, so that what the model
leaves out of both cancels. Its interval joins the runs' own fluctuation, what the fit does not know (by
bootstrap) and a widening for each step outside of what was seen, also said in words. Knows nothing of run
directories.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import numpy as np

from profiler.forecast.closed_form import estimate, estimate_each
from profiler.forecast.fitting import Fit, fit_model
from profiler.forecast.model import PipelineModel, Windows, hops, lay_windows, usual_pageable
from profiler.forecast.observations import Observations, launch_bound
from profiler.forecast.setting import Setting
from profiler.forecast.simulation import Played, simulate

normal_90: Final = 1.645
model_deviation: Final = 0.01  # of a prediction within what was seen
plays_each: Final = 3
windows_each: Final = 24
batches_each: Final = 720  # where windows are large: that settles a pace to parts in a thousand
told_pace: Final = 1.05  # times as fast or as slow: less of a change in pace is not worth a word
launch_deviation: Final = 0.1  # for each such stage; on two H200 six forecasts were off by 4 to 20 %
without_deviation: Final = 0.07  # on one H200 forecasts from two such runs were off by 5 and 11 %
gain_deviation: Final = 0.03  # of what a GPU does more with both roles at work
_most: Final = 0.6  # of a logarithm: beyond it nothing is known at all


@dataclass(frozen=True, slots=True)
class Doubt:
    """A step outside of what was seen, and how far off it may lead."""

    text: str
    deviation: float  # relative


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What a setting would come to. Rates in tokens/s."""

    tokens_per_s: float
    low: float  # 90 % interval
    high: float
    ratio: float  # to today's rate, by the model alone
    closed_form_tokens_per_s: float
    limit: str  # what sets the pace
    shares: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # by stage, of its threads' time
    doubts: tuple[Doubt, ...] = ()


@dataclass(frozen=True, slots=True)
class _Average:
    """Of several plays of one setting."""

    tokens_per_s: float
    deviation: float  # between them, relative, beyond what fluctuation within them explains
    shares: Mapping[str, Mapping[str, float]]


class Predictor:
    """Answers for the runs it was fitted on. The first is the one that changes are made to."""

    def __init__(self, runs: Sequence[Observations], fit: Fit | None = None) -> None:
        self.runs, self.now = tuple(runs), runs[0].setting
        self.fit = fit or fit_model(runs)
        self.model = self.fit.model
        self._seen = np.concatenate([run.samples["target"].tokens for run in runs])
        self._played: dict[Setting, _Average] = {}  # by the fitted model
        played = [self._play(self.model, run.setting) for run in runs]
        self.today, self._today_deviation = played[0].tokens_per_s, played[0].deviation
        # What the model makes of the runs it was fitted on: its own error is taken out of every prediction.
        errors = [math.log(r.tokens_per_s / p.tokens_per_s) for r, p in zip(runs, played, strict=True)]
        self.correction = math.exp(sum(errors) / len(errors))
        self._error = abs(errors[0]) / 4 + (float(np.std(errors)) if len(errors) > 1 else 0.0)

    def windows(self, setting: Setting) -> Windows:
        """The windows of the same documents in that setting."""
        return lay_windows(self.model, setting, self.now)

    def rank(self, settings: Iterable[Setting]) -> list[float]:
        """Tokens per second of each by the closed form: thousands a second."""
        known: dict[tuple[int | None, int | None], Windows] = {}
        found = []
        for setting in settings:
            key = (setting.token_budget, setting.window_tokens)
            windows = known.setdefault(key, self.windows(setting))
            found.append(self.correction * estimate(self.model, setting, windows).tokens_per_s)
        return found

    def predict(self, setting: Setting, model: PipelineModel | None = None) -> Prediction:
        """What `setting` would come to; `model`: with other costs than those fitted."""
        chosen = model or self.model
        windows = self.windows(setting)
        played = self._play(chosen, setting)
        bounds = estimate(chosen, setting, windows)
        rate = self.correction * played.tokens_per_s
        doubts = (*self._doubts(setting, windows), *self._doubt_pace(played.tokens_per_s / self.today))
        deviation = math.sqrt(
            self._fit_deviation(setting, windows) ** 2
            # Today's rate, and that of the run to come.
            + 2 * self.runs[0].deviation ** 2
            + self._today_deviation**2
            + played.deviation**2
            + (model_deviation if setting != self.now else 0.0) ** 2
            + (self._error if setting != self.now else 0.0) ** 2
            + sum(doubt.deviation**2 for doubt in doubts)
        )
        reach = math.exp(normal_90 * min(deviation, _most))
        return Prediction(
            tokens_per_s=rate,
            low=rate / reach,
            high=rate * reach,
            ratio=played.tokens_per_s / self.today,
            closed_form_tokens_per_s=self.correction * bounds.tokens_per_s,
            limit=bounds.limit,
            shares=played.shares,
            doubts=doubts,
        )

    def _play(self, model: PipelineModel, setting: Setting) -> _Average:
        """Several short plays: which drafter gets which batch settles by luck, and the pace with it."""
        if model is not self.model:
            return self._play_anew(model, setting)
        if setting not in self._played:
            self._played[setting] = self._play_anew(model, setting)
        return self._played[setting]

    def _play_anew(self, model: PipelineModel, setting: Setting) -> _Average:
        windows = self.windows(setting)
        count = windows_to_play(windows)
        plays = [simulate(model, setting, windows, count=count, seed=seed) for seed in range(plays_each)]
        between = float(np.log([played.tokens_per_s for played in plays]).var(ddof=1))
        within = float(np.mean([_relative_variance(played) for played in plays]))
        rate = plays_each / sum(1.0 / played.tokens_per_s for played in plays)
        return _Average(rate, math.sqrt(max(between - 2 * within, 0.0)), plays[0].shares)

    def _fit_deviation(self, setting: Setting, windows: Windows) -> float:
        """How much the ratio to today's rate varies over the models that the runs allow."""
        rates = [found.tokens_per_s for found in estimate_each(self.fit.others, setting, windows)]
        return float(np.log(np.divide(rates, self._rates_today)).std())

    @cached_property
    def _rates_today(self) -> list[float]:
        """Of the run as it was, by each model that it allows."""
        today = self.model.windows
        return [found.tokens_per_s for found in estimate_each(self.fit.others, self.now, today)]

    def _doubts(self, setting: Setting, windows: Windows) -> Iterable[Doubt]:
        yield from self._doubt_sizes(windows)
        if setting != self.now:
            yield from self._doubt_launches()
        yield from self._doubt_ways(setting)
        seen = {(run.setting.targets, run.setting.drafters) for run in self.runs}
        if (setting.targets, setting.drafters) not in seen:
            away = min(abs(math.log((setting.targets + setting.drafters) / (t + d))) for t, d in seen)
            text = f"no run had {setting.targets} targets and {setting.drafters} drafters"
            crowded = self._crowds(setting)
            if crowded:
                text += f", which share {self.model.cores:g} CPU cores"
            yield Doubt(text, (0.03 if crowded else 0.01) * (1 + away))
            if self.runs[0].emulated and not self.model.cores:
                yield Doubt("on how many CPU cores it ran is not recorded; taken as enough", 0.05)
        if setting.drafters > 1 and all(run.merge_s is None for run in self.runs):
            free = "free" if not self.model.merge_s else "long as copying them"
            yield Doubt(f"summing gradients of several drafters was never seen; taken as {free}", 0.02)
        if setting.shares_devices and not any(run.setting.shares_devices for run in self.runs):
            told = "one working at a time"
            if self.model.sharing_gain is not None:
                told = f"{self.model.sharing_gain:g} times as fast as taking turns"
            yield Doubt(f"roles never shared a device: taken as {told}", 0.03)
        yield from self._doubt_schedule(setting)

    def _doubt_schedule(self, setting: Setting) -> Iterable[Doubt]:
        if all(run.setting.lockstep != setting.lockstep for run in self.runs):
            yield Doubt(f"{'lockstep' if setting.lockstep else 'overlap'} was never seen", 0.02)
            gain = self.model.sharing_gain
            if gain is not None and (setting.shares_devices or self.now.shares_devices):
                text = f"a GPU is taken to do {gain:g} times as much with both roles at work as in turns"
                yield Doubt(text, gain_deviation)

    def _crowds(self, setting: Setting) -> bool:
        """Whether stages have to share cores, as they are or in that setting."""
        stages = max(one.targets + one.drafters for one in (self.now, setting))
        return self.model.cores is not None and self.model.cores < stages

    def _doubt_launches(self) -> Iterable[Doubt]:
        """Where a GPU waited for launches, its times are those of threads that took turns at Python."""
        for stage, share in self.runs[0].enqueueing.items():
            if share > launch_bound:
                text = f"a {stage}'s thread enqueued for {share * 100:.0f} % of the time its GPU worked"
                yield Doubt(f"{text}: how long the GPU alone would take is not known", launch_deviation)

    def _doubt_pace(self, ratio: float) -> Iterable[Doubt]:
        """A CPU's work takes longer after sleeping than without a pause."""
        now, cores = self.runs[0], self.model.cores
        if now.emulated and cores and cores <= now.setting.targets + now.setting.drafters:
            away = abs(math.log(max(ratio, 1e-9)))
            if away > math.log(told_pace):
                text = "stages would wait less, or more, which on a CPU changes their work"
                yield Doubt(text, 0.12 * away)

    def _doubt_sizes(self, windows: Windows) -> Iterable[Doubt]:
        if windows == self.model.windows:
            return
        low, high = float(self._seen.min()), float(self._seen.max())
        mean = float(np.mean([tokens for window in windows for tokens in window]))
        beyond = max(math.log(mean / (1.02 * high)), math.log(0.98 * low / mean), 0.0)
        if beyond > 0:
            text = f"batches of {mean:,.0f} tokens; those seen had {low:,.0f} to {high:,.0f}"
            yield Doubt(text, 0.05 * beyond)

    def _doubt_ways(self, setting: Setting) -> Iterable[Doubt]:
        way = self.model.way(setting)
        yield from self._doubt_copiers(setting, way)
        if setting.dispatch == "local" and setting.shares_devices:
            return
        within = all(setting.within(t, d) for t in range(setting.targets) for d in range(setting.drafters))
        if within and way != "pageable":  # through host memory even states of one device go
            return
        if all(any(hop in run.measured_hops for run in self.runs) for hop in hops[way]):
            return
        if taken := [hop for hop in hops[way] if hop in self.model.taken_hops]:
            pace = " and ".join(f"{usual_pageable[hop] / 1e9:g} GB/s {hop.split()[1]}" for hop in taken)
            text = f"how fast {way} copies are was not measured; taken as {pace}, as on hosts of H200s"
            yield Doubt(text, 0.05)
        elif all(hop in self.model.links for hop in hops[way]):
            # Logical links keep what is declared of them; a measured one may be slower among others.
            far = 0.01 if self.runs[0].emulated else 0.02
            yield Doubt(f"{way} copies were not seen in a run; their speed is that of the links", far)
        else:
            yield Doubt(f"how fast {way} copies are is unknown; taken as hidden behind work", 0.1)

    def _doubt_copiers(self, setting: Setting, way: str) -> Iterable[Doubt]:
        """Roles on one GPU that copy to and from the host's own memory."""
        now, shares = self.runs[0], setting.shares_devices and self.now.shares_devices
        if way == "pageable" and shares and self.model.sharing_gain is not None:
            before = Counter([*now.setting.target_places, *now.setting.drafter_places])
            then = Counter([*setting.target_places, *setting.drafter_places])
            if now.setting.path != way or max(then.values()) > max(before.values()):
                yield Doubt("pageable copies of roles on one GPU are taken to exclude each other", 0.06)
        elif shares and self.model.sharing_gain is not None and self.model.way(self.now) == "pageable":
            text = "pageable copies held roles up on their GPU: how long work takes without them was not seen"
            yield Doubt(text, without_deviation)


def windows_to_play(windows: Windows) -> int:
    """How many windows a play has."""
    batches = sum(map(len, windows)) / len(windows)
    return min(windows_each, math.ceil(batches_each / batches))


def _relative_variance(played: Played) -> float:
    """Of the mean time of a play's windows."""
    seconds = np.array(played.seconds)
    return float(seconds.var() / seconds.mean() ** 2 / len(seconds))
