"""Tokens per second of every configuration of a space at once, by the forecast's closed form.

The same formulas as profiler.forecast.closed_form (a test holds one to the other), over arrays: a proposal
asks for thousands of configurations and for the slope with every cost. Batches of a window count as equal,
and pageable copies of roles on one GPU do not hold each other up: no search needs to know that to leave them.
Beside the costs, a few numbers say how stages play together; the closed form has fixed values for them.
Knows nothing of where the costs come from.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from profiler.forecast.closed_form import batches_in_turn, mean_of_latest
from profiler.forecast.fitting import gpu_sharing_gain
from profiler.forecast.setting import Setting

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
costs_of: Final = (
    "pack",
    "forward",
    "backward",
    "step",
    "down",
    "up",
    "move",
)  # seconds of a batch; step: of a window
# How stages play together: (name, as the closed form has it, prior mean, deviation). Only rates can tell.
structure: Final = (
    ("rounding", 1.0, 0.7, 0.4),  # how much of a round that drafters do not fill is lost
    ("fluctuation", 0.05, 0.08, 0.06),  # relative deviation of a batch's work
    (
        "sharing",
        math.log(gpu_sharing_gain),
        math.log(1.06),
        0.1,
    ),  # how much more a device does for two roles at once
    ("depth", 0.0, 0.03, 0.04),  # of a window's time, lost with queues of one batch
    ("prefetch", 0.0, 0.01, 0.02),
)
_delta: Final = 0.02
as_closed_form: Final = tuple(value for _, value, _, _ in structure)


@dataclass(frozen=True)
class Layout:
    """What the formulas need of [M] settings, but for their costs."""

    targets: Floats
    drafters: Floats
    pageable: Bools
    pinned: Bools
    shared_queue: Bools
    local: Bools
    lockstep: Bools
    shares: Bools
    depth: Floats
    prefetch: Floats
    held: Floats  # batches that queues hold
    batches: Floats  # of a window
    tokens: Floats  # of a batch
    locked: Floats  # batches of a window trained one after the other in lockstep
    target_threads: Floats  # [M, P] targets at each place
    drafter_threads: Floats  # [M, P]
    leads: Bools  # [M, P] where the optimizer steps
    late_targets: Floats
    late_drafters: Floats

    @classmethod
    def of(cls, settings: Sequence[Setting], window_tokens: float, fill: float) -> Layout:
        """Of settings over windows of so many tokens; batches are filled to `fill` of their budget."""
        budgets = [min((s.token_budget or window_tokens) * fill, window_tokens) for s in settings]
        batches = [max(math.ceil(window_tokens / budget - 1e-9), 1) for budget in budgets]
        work = [_work(s.target_places, s.drafter_places) for s in settings]
        targets = np.array([s.targets for s in settings], dtype=float)
        drafters = np.array([s.drafters for s in settings], dtype=float)
        locked = [
            _locked(n, s.targets, s.drafters) if s.lockstep else 0.0
            for n, s in zip(batches, settings, strict=True)
        ]
        flags = {
            "pageable": [s.path == "pageable" for s in settings],
            "pinned": [s.path == "pinned" for s in settings],
            "shared_queue": [s.shared_queue for s in settings],
            "local": [s.dispatch == "local" for s in settings],
            "lockstep": [s.lockstep for s in settings],
            "shares": [s.shares_devices for s in settings],
        }
        return cls(
            targets=targets,
            drafters=drafters,
            **{name: np.array(flag, dtype=bool) for name, flag in flags.items()},
            depth=np.array([s.depth for s in settings], dtype=float),
            prefetch=np.array([s.prefetch_depth for s in settings], dtype=float),
            held=np.array([s.depth * s.queues for s in settings], dtype=float),
            batches=np.array(batches, dtype=float),
            tokens=window_tokens / np.array(batches, dtype=float),
            locked=np.array(locked),
            target_threads=_padded([part for part, _, _ in work]),
            drafter_threads=_padded([part for _, part, _ in work]),
            leads=_padded([part for _, _, part in work]) > 0,
            late_targets=np.array([mean_of_latest(s.targets) for s in settings]),
            late_drafters=np.array([mean_of_latest(s.drafters) for s in settings]),
        )


def log_rates(layout: Layout, costs: Floats, form: Sequence[float] = as_closed_form) -> Floats:
    """Log tokens/s, [M]; `costs` [7, M] seconds in the order of `costs_of`, `form` values of `structure`."""
    found: Floats = np.log(layout.batches * layout.tokens / _window_s(layout, costs, form))
    return found


def slopes(layout: Layout, costs: Floats, form: Sequence[float]) -> tuple[Floats, Floats]:
    """How log tokens/s goes with the logarithm of each cost, [7, M], and with the form, [5, M]."""
    with_costs = np.empty_like(costs)
    for number in range(len(costs_of)):
        more, less = costs.copy(), costs.copy()
        more[number] *= math.exp(_delta)
        less[number] *= math.exp(-_delta)
        with_costs[number] = (log_rates(layout, more, form) - log_rates(layout, less, form)) / (2 * _delta)
    with_form = np.empty((len(structure), costs.shape[1]))
    for number in range(len(structure)):
        up, down = list(form), list(form)
        up[number] += _delta
        down[number] -= _delta
        with_form[number] = (log_rates(layout, costs, up) - log_rates(layout, costs, down)) / (2 * _delta)
    return with_costs, with_form


def _window_s(at: Layout, costs: Floats, form: Sequence[float]) -> Floats:
    pack, forward, backward, step, down, up, move = costs
    rounding, noise, sharing, depth_loss, prefetch_loss = form
    n = at.batches
    own_t, own_d = np.where(at.pageable, down, 0.0), np.where(at.pageable, up, 0.0)
    away = np.where(at.shared_queue & (at.drafters > 1) & ~at.pageable, 1.0 - 1.0 / at.drafters, 0.0)
    own = own_d + away * move
    each = backward + own
    rounds = rounding * np.ceil(n / at.drafters) + (1.0 - rounding) * n / at.drafters
    uneven = np.where(n % at.drafters != 0, 1.0, 0.0)
    hidden = np.where(at.drafters > 1, uneven * own + (1.0 - uneven) * np.minimum(own, step), 0.0)
    target_s = n * (forward + own_t) / at.targets
    drafter_s = rounds * each + step - hidden
    between = n / at.targets / at.drafters
    peer_s = np.where(at.local, 0.0, between * down)
    link_s = np.where(at.pageable, 0.0, np.where(at.pinned, between * np.maximum(down, up), peer_s))
    shared_s = np.where(at.shares, _shared_s(at, forward, backward, step, math.exp(sharing)), 0.0)
    held = at.held + at.targets + at.drafters - 1
    drained = step + np.maximum(n - held, 0.0) * target_s / n + each
    drained = np.where((drained > target_s) & (target_s > 0.5 * drafter_s), drained, 0.0)
    others = np.maximum.reduce([target_s, n * pack, link_s, shared_s, drained])
    t_sd = noise * forward * np.sqrt(n) / at.targets
    d_sd = noise * backward * np.sqrt(rounds)
    evened = np.minimum(np.sqrt(n / (n + at.held + at.targets)), 1.0)
    late = drafter_s + d_sd * at.late_drafters
    flowing = _larger_mean(others, late, np.abs(evened) * np.sqrt(t_sd**2 + d_sd**2))
    exposed = np.where(at.pinned, down + up, down)
    in_turn = (
        n / at.targets * (forward * at.target_threads.max(1) * (1.0 + noise * at.late_targets) + exposed)
        + at.locked * at.drafter_threads.max(1) * each * (1.0 + noise * at.late_drafters)
        + step
    )
    lost = depth_loss / at.depth + prefetch_loss * 2.0 / at.prefetch
    found: Floats = np.where(at.lockstep, in_turn, flowing * (1.0 + lost))
    return found


def _shared_s(at: Layout, forward: Floats, backward: Floats, step: Floats, gain: float) -> Floats:
    """The busiest device that roles share; while both are at work it does `gain` times as much."""
    t, d = at.target_threads, at.drafter_threads
    n = at.batches[:, None]
    forwards = np.where(t > 0, n / at.targets[:, None] * forward[:, None], 0.0)  # of each thread there
    training = np.where(d > 0, n / at.drafters[:, None] * backward[:, None], 0.0)
    training = training + at.leads * step[:, None] / np.maximum(d, 1.0)
    both = np.minimum(forwards, training)
    work = both * (t + d) / gain + (forwards - both) * t + (training - both) * d
    places = (t + d > 0).sum(1)
    even = work.sum(1) / places + step * (1 - 1 / places) / 2
    balanced = (places > 1) & (at.targets == at.drafters)
    found: Floats = np.where(balanced, even, work.max(1))
    return found


def _larger_mean(a: Floats, b: Floats, spread: Floats) -> Floats:
    """The mean of the larger of two normal values whose difference has this standard deviation."""
    from scipy.special import ndtr

    spread = np.maximum(spread, 1e-12)
    z = (a - b) / spread
    below = ndtr(z)
    found: Floats = a * below + b * (1 - below) + spread * np.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    return found


def _padded(rows: Sequence[Sequence[float]]) -> Floats:
    most = max(map(len, rows))
    return np.array([[*row, *[0.0] * (most - len(row))] for row in rows])


@lru_cache(maxsize=4096)
def _locked(batches: int, targets: int, drafters: int) -> float:
    windows = ((1.0,) * batches,) * max(targets, 8)
    places = tuple(range(targets + drafters))
    setting = Setting(target_places=places[:targets], drafter_places=places[targets:])
    return batches_in_turn(setting, windows)


@lru_cache(maxsize=4096)
def _work(
    targets: tuple[int, ...], drafters: tuple[int, ...]
) -> tuple[list[float], list[float], list[float]]:
    places = sorted({*targets, *drafters})
    return (
        [float(targets.count(place)) for place in places],
        [float(drafters.count(place)) for place in places],
        [float(place == drafters[0]) for place in places],
    )
