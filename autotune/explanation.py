"""Why a configuration won, in sentences, from what was measured of it and of the starting configuration.

Knows nothing of how the winner was found, nor of rendering.
"""

from __future__ import annotations

from collections.abc import Sequence

from autotune.comparison import Interval
from autotune.trial import Trial

least_wait_moved = 0.05  # of a thread's time; smaller shifts explain nothing
waits_told = 3


def explain(
    verdict: str, fastest: Trial | None, start: Trial | None, gain: Interval | None, equals: Sequence[int]
) -> list[str]:
    """The reasons for the verdict "better", "equal" or "none"."""
    if fastest is None:
        return ["No trial both ran and trained soundly, so nothing is recommended."]
    if gain is None or start is None or start.measurement is None or fastest.measurement is None:
        reason = (start.unhealthy or start.reason) if start else "it was not tried"
        return [f"The starting configuration gave no comparable figure ({reason})."]
    if verdict == "equal":
        return [_explain_equal(fastest, start, gain)]
    changed = [
        f"{path} {start.values[path]} → {value}"
        for path, value in fastest.values.items()
        if value != start.values[path]
    ]
    return [
        f"Changed: {', '.join(changed)}.",
        *_explain_causes(start, fastest),
        *_explain_waits(start, fastest),
        *([f"Within the noise as fast: trials {', '.join(map(str, equals))}."] if equals else []),
    ]


def caution(changes_training: Sequence[str]) -> list[str]:
    """What to bear in mind where trials did not all train the same thing."""
    if not changes_training:
        return []
    names = ", ".join(changes_training)
    told = f"Not comparable in loss: {names} changed what is trained, so more tokens a second need not be the"
    return [f"{told} better training. Losses were compared only between trials that agree in that."]


def _explain_equal(fastest: Trial, start: Trial, gain: Interval) -> str:
    if fastest.number == start.number:
        return "Nothing tried was faster than the starting configuration."
    share = f"{gain.mid - 1:+.1%} ({gain.low - 1:+.1%} to {gain.high - 1:+.1%})"
    return (
        f"Equal within the noise or the tolerance: the fastest, trial {fastest.number}, differs from the"
        f" starting configuration by {share}."
    )


def _explain_causes(start: Trial, fastest: Trial) -> list[str]:
    before = {cause.name: cause for cause in start.measurement.causes} if start.measurement else {}
    after = {cause.name for cause in fastest.measurement.causes} if fastest.measurement else set()
    removed = [f"No longer found: {name} ({before[name].summary})." for name in before if name not in after]
    left = fastest.cause
    return removed + ([f"What limits it now: {left.name} ({left.summary})."] if left else [])


def _explain_waits(start: Trial, fastest: Trial) -> list[str]:
    """The largest waits of the start, and what became of them."""
    if not start.measurement or not fastest.measurement:
        return []
    after = dict(fastest.measurement.waits)
    moved = [
        f"{name} {share:.0%} → {after[name]:.0%}"
        for name, share in start.measurement.waits
        if name in after and share - after[name] >= least_wait_moved
    ]
    return [f"Share of time: {', '.join(moved[:waits_told])}."] if moved else []
