"""Tokens per second of a pipeline by arithmetic: thousands of settings a second, to rank them.

A window takes as long as the slowest of: the targets, the drafters with their step, packing, a shared device,
a link, pageable copies of a GPU, and the drafters after a step that found the queues drained.
docs/forecast.md has the formulas. Knows nothing of single batches; `simulation` plays them, and each checks
the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import ceil, erf, exp, pi, sqrt
from typing import Self

from profiler.forecast.model import PipelineModel, Windows, hops, keeps_driver
from profiler.forecast.setting import Setting

_rounds = 8  # of finding how many stages work at once


@dataclass(frozen=True, slots=True)
class Bounds:
    """Seconds that a window takes at least, by what makes it so."""

    window_tokens: float
    seconds: dict[str, float]
    noisy_s: float  # of a window, fluctuations counted

    @property
    def limit(self) -> str:
        """The slowest."""
        return max(self.seconds, key=lambda name: self.seconds[name])

    @property
    def tokens_per_s(self) -> float:
        return self.window_tokens / self.noisy_s


@dataclass(frozen=True, slots=True)
class _Layout:
    """What windows come to in a setting, whatever the work costs. Means over windows."""

    batches: float
    tokens: float  # of a batch
    rounds: float  # batches of the busiest drafter
    uneven: float  # share of windows in which drafters get different numbers of batches
    locked: float  # lockstep: batches that a drafter trains one after the other

    @classmethod
    def of(cls, setting: Setting, windows: Windows) -> Self:
        count, drafters = len(windows), setting.drafters
        sizes = [len(window) for window in windows]
        batches = sum(sizes) / count
        return cls(
            batches=batches,
            tokens=sum(map(sum, windows)) / (batches * count),
            rounds=sum(ceil(size / drafters) for size in sizes) / count,
            uneven=sum(size % drafters != 0 for size in sizes) / count,
            locked=batches_in_turn(setting, windows) if setting.lockstep else 0.0,
        )


@dataclass(frozen=True, slots=True)
class _Load(_Layout):
    """The same with the seconds of each part, with a given slowdown of all work on the CPU."""

    pack: float
    forward: float  # of the usual target
    backward: float
    step: float
    extra_t: float
    extra_d: float

    def slowed(self, pack: float, target: float, drafter: float) -> _Load:
        """The same with the work of each stage taking so much longer."""
        return replace(
            self,
            pack=self.pack * pack,
            forward=self.forward * target,
            extra_t=self.extra_t * target,
            backward=self.backward * drafter,
            extra_d=self.extra_d * drafter,
            step=self.step * drafter,
        )


def estimate(model: PipelineModel, setting: Setting, windows: Windows) -> Bounds:
    """What the setting comes to on these windows."""
    (found,) = estimate_each((model,), setting, windows)
    return found


def estimate_each(models: Iterable[PipelineModel], setting: Setting, windows: Windows) -> list[Bounds]:
    """What the setting comes to on these windows by each of several models."""
    layout = _Layout.of(setting, windows)
    found = []
    for model in models:
        alone = _load(model, setting, layout)
        found.append(_bounds(model, setting, alone.slowed(*_settled_slowdowns(model, setting, alone))))
    return found


def stage_slowdowns(model: PipelineModel, setting: Setting, windows: Windows) -> tuple[float, float, float]:
    """How much longer prefetch, targets and drafters work than alone; 1 on devices of their own."""
    return _settled_slowdowns(model, setting, _load(model, setting, _Layout.of(setting, windows)))


def _settled_slowdowns(model: PipelineModel, setting: Setting, alone: _Load) -> tuple[float, float, float]:
    now = (1.0, 1.0, 1.0)
    if not model.cores:
        return now
    for _ in range(_rounds):
        load = alone.slowed(*now)
        found = _slowdowns(model, setting, load, _bounds(model, setting, load).noisy_s)
        now = (0.5 * (now[0] + found[0]), 0.5 * (now[1] + found[1]), 0.5 * (now[2] + found[2]))
    return now


def _load(model: PipelineModel, setting: Setting, layout: _Layout) -> _Load:
    return _Load(
        batches=layout.batches,
        tokens=layout.tokens,
        rounds=layout.rounds,
        uneven=layout.uneven,
        locked=layout.locked,
        pack=model.pack.at(layout.tokens),
        forward=model.forward.at(layout.tokens),
        backward=model.backward.at(layout.tokens),
        step=model.window_s(setting.drafters),
        extra_t=model.target_extra.at(layout.tokens),
        extra_d=model.drafter_extra.at(layout.tokens),
    )


def _slowdowns(
    model: PipelineModel, setting: Setting, load: _Load, window_s: float
) -> tuple[float, float, float]:
    """How much longer prefetch, targets and drafters work, each thread at work its share of the time."""
    n = load.batches
    counts = (1, setting.targets, setting.drafters)
    work = (n * load.pack, n * (load.forward + load.extra_t), n * (load.backward + load.extra_d) + load.step)
    shares = [min(w / window_s / count, 1.0) for w, count in zip(work, counts, strict=True)]
    found = []
    for mine in range(3):
        chances = [1.0]  # that so many others work
        for stage in range(3):
            never = stage == mine or (setting.shares_devices and {mine, stage} == {1, 2})
            for _ in range(counts[stage] - never):
                chances = _one_more(chances, _share(setting, shares, mine, stage))
        found.append(sum(chance * model.slowdown(others + 1) for others, chance in enumerate(chances)))
    return found[0], found[1], found[2]


def _share(setting: Setting, shares: list[float], mine: int, stage: int) -> float:
    """The share of the time in which a stage works while another (`mine`) does."""
    if setting.lockstep and {mine, stage} == {1, 2}:
        return 0.0  # never at once
    if setting.lockstep and mine == stage:
        return 1.0  # all of them at once
    return shares[stage]


def _one_more(chances: list[float], share: float) -> list[float]:
    more = [*(chance * (1.0 - share) for chance in chances), 0.0]
    for running, chance in enumerate(chances):
        more[running + 1] += chance * share
    return more


def _bounds(model: PipelineModel, setting: Setting, load: _Load) -> Bounds:
    n, way = load.batches, model.way(setting)
    down, up = (model.hop_s(hop, load.tokens) for hop in (hops[way][0], hops[way][-1]))
    own_t, own_d = (down, up) if way == "pageable" else (0.0, 0.0)
    away = 0.0
    if setting.shared_queue and setting.drafters > 1 and way != "pageable":
        away = 1.0 - 1.0 / setting.drafters if model.away_share is None else model.away_share
    move = away * model.hop_s("move", load.tokens)
    step_each = load.backward + load.extra_d + own_d + move
    late = [model.copy_factor(hops[way][0], i) for i in range(setting.targets)]
    together = way == "pageable" and setting.shares_devices and model.sharing_gain is not None
    held_up = _held_up(model, setting, load, up) if together else 0.0
    cycles = [
        load.forward * model.target_factor(i) + load.extra_t + own_t * late[i] + held_up
        for i in range(setting.targets)
    ]
    if setting.lockstep:
        exposed = {"pageable": down, "peer": down, "pinned": down + up}[way]
        return _lockstep(setting, load, max(cycles) - own_t, step_each, exposed, model)
    seconds = {
        "targets": n / sum(1.0 / max(cycle, 1e-12) for cycle in cycles),
        "drafters": load.rounds * step_each + load.step - _hidden(setting, load, own_d + move),
        "prefetch": n * load.pack,
    }
    between = n / setting.targets / setting.drafters
    if way == "peer" and setting.dispatch != "local":
        seconds["links"] = between * down * max(late)
    elif way == "pinned":
        seconds["links"] = between * max(down * max(late), up)
    if setting.shares_devices:
        seconds["shared device"] = _shared(model, setting, load)
    if together:
        seconds["copies"] = _copying(setting, load, down, up)
    held = setting.depth * setting.queues + setting.targets + setting.drafters - 1
    pace = seconds["targets"] / n
    drained = load.step + max(n - held, 0.0) * pace + step_each
    if drained > seconds["targets"] and seconds["targets"] > 0.5 * seconds["drafters"]:
        seconds["drained queues"] = drained
    return Bounds(n * load.tokens, seconds, _noisy(model, setting, load, seconds))


def _held_up(model: PipelineModel, setting: Setting, load: _Load, up: float) -> float:
    """How much later a batch leaves a target that shares its GPU, and whose copies are pageable.

    A drafter's copy begins when the target's has ended, and keeps the driver; then both work at once.
    """
    if setting.lockstep:
        return 0.0
    return keeps_driver * up + min(load.forward, load.backward) * (
        model.slowdown_on_one(["target", "drafter"]) - 1.0
    )


def _copying(setting: Setting, load: _Load, down: float, up: float) -> float:
    """Pageable copies of the busiest GPU, which exclude each other."""
    busy: dict[int, float] = {}
    for places, copy_s in ((setting.target_places, down), (setting.drafter_places, up)):
        for place in places:
            busy[place] = busy.get(place, 0.0) + load.batches / len(places) * copy_s
    return max(busy.values())


def _hidden(setting: Setting, load: _Load, own: float) -> float:
    """Copies that drafters make while they wait for the end of the window before.

    Where batches do not go round evenly, the drafter that gets one less waits long enough for a whole one.
    """
    if setting.drafters == 1:
        return 0.0
    return load.uneven * own + (1.0 - load.uneven) * min(own, load.step)


def _shared(model: PipelineModel, setting: Setting, load: _Load) -> float:
    """The busiest device that roles share."""
    targets = {place: setting.target_places.count(place) for place in setting.target_places}
    drafters = {place: setting.drafter_places.count(place) for place in setting.drafter_places}
    work = {}
    for place in {**targets, **drafters}:
        forwards = load.batches / setting.targets * load.forward
        training = load.batches / setting.drafters * load.backward
        step = load.step if place == setting.drafter_places[0] else 0.0
        threads = targets.get(place, 0), drafters.get(place, 0)
        work[place] = _on_one(model, threads, forwards, training + step / max(threads[1], 1))
    if len(work) > 1 and setting.targets == setting.drafters:  # work goes to who has time for it
        return sum(work.values()) / len(work) + load.step * (1 - 1 / len(work)) / 2
    return max(work.values())


def _on_one(model: PipelineModel, threads: tuple[int, int], forwards: float, training: float) -> float:
    """Seconds of so much work of each of a device's targets and drafters; it does more while both work."""
    both = min(forwards, training) if min(threads) else 0.0
    at_work = ["target"] * threads[0] + ["drafter"] * threads[1]
    alone = (forwards - both) * threads[0] + (training - both) * threads[1]
    return both * model.slowdown_on_one(at_work) + alone


def _lockstep(
    setting: Setting, load: _Load, forward: float, step_each: float, copies_s: float, model: PipelineModel
) -> Bounds:
    """Forward and training take turns; copies lie between them."""
    late = 1.0 + model.noise.get("target", 0.0) * mean_of_latest(setting.targets)
    rounds = load.batches / setting.targets
    forward *= _most_on_one(setting.target_places)
    turns = load.locked * _most_on_one(setting.drafter_places)
    train = turns * step_each * (1.0 + model.noise.get("drafter", 0.0) * mean_of_latest(setting.drafters))
    seconds = {"targets": rounds * forward * late, "drafters": rounds * copies_s + train + load.step}
    return Bounds(load.batches * load.tokens, seconds, sum(seconds.values()))


def _most_on_one(places: tuple[int, ...]) -> int:
    return max(Counter(places).values())


def batches_in_turn(setting: Setting, windows: Windows) -> float:
    """Batches of a window that are trained one after the other, rounds cutting across windows."""
    numbers = [number for number, window in enumerate(windows) for _ in window]
    one_by_one = 0
    for first in range(0, len(numbers), setting.targets):
        counts = Counter(numbers[first : first + setting.targets])
        one_by_one += sum(ceil(count / setting.drafters) for count in counts.values())
    return one_by_one / len(windows)


def _noisy(model: PipelineModel, setting: Setting, load: _Load, seconds: dict[str, float]) -> float:
    """The mean of a window's time: the slowest of several that fluctuate is slower than the slowest mean."""
    n = load.batches
    t_sd = model.noise.get("target", 0.0) * load.forward * sqrt(n) / setting.targets
    d_sd = model.noise.get("drafter", 0.0) * load.backward * sqrt(load.rounds)
    late = dict(seconds)
    late["drafters"] += d_sd * mean_of_latest(setting.drafters)
    drafters = late.pop("drafters")
    others = max(late.values())
    # Queues that hold part of a window even out that part of its fluctuations.
    held = setting.depth * setting.queues + setting.targets
    evened = min(sqrt(n / (n + held)), 1.0)
    return _larger_mean(others, drafters, evened * sqrt(t_sd**2 + d_sd**2))


def _larger_mean(a: float, b: float, spread: float) -> float:
    """The mean of the larger of two normal values whose difference has this standard deviation."""
    if spread <= 0:
        return max(a, b)
    z = (a - b) / spread
    below = 0.5 * (1 + erf(z / sqrt(2)))
    return a * below + b * (1 - below) + spread * exp(-z * z / 2) / sqrt(2 * pi)


def mean_of_latest(count: int) -> float:
    """Mean of the largest of `count` standard normal values."""
    known = (0.0, 0.0, 0.564, 0.846, 1.029, 1.163, 1.267, 1.352, 1.424)
    return known[count] if count < len(known) else 1.424 + 0.06 * (count - 8) ** 0.7
