"""The answer to a what-if question in words. Knows nothing of how it came about."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cli.layout import facts, plain, table
from reports import text

if TYPE_CHECKING:
    from profiler.forecast.memory import MemoryForecast
    from profiler.forecast.what_if import WhatIf

parts_shown = 4  # of a stage's time


def describe_what_if(answer: WhatIf) -> str:
    """Rates, what limits, how busy stages would be, days, memory, assumptions."""
    today, predicted = answer.today, answer.prediction
    interval = text.rate_range(predicted.low, predicted.high)
    changes = ", ".join(f"{name}={value}" for name, value in answer.changes.items())
    rows = [
        ("change", changes or "none"),
        ("today", f"{text.rate(today.tokens_per_s)}, 90 % interval {text.rate_range(today.low, today.high)}"),
        ("predicted", f"{text.rate(predicted.tokens_per_s)}, 90 % interval {interval}, {answer.gain:+.1%}"),
        ("closed form", text.rate(predicted.closed_form_tokens_per_s)),
        ("limit", predicted.limit),
        ("limit of the devices", _device_limit(answer)),
        (f"days for {text.count_of(answer.epochs, 'epoch')}", _days(answer)),
    ]
    blocks = [facts(rows), "STAGES THEN\n" + _shares(answer), "MEMORY THEN\n" + _memory(answer.memory)]
    if answer.assumptions:
        blocks.append("WHAT IT RESTS ON\n" + "\n".join(f"- {line}" for line in answer.assumptions))
    return plain("\n\n".join(blocks))


def _device_limit(answer: WhatIf) -> str:
    limit = answer.limit
    said = text.rate(limit.as_split, limit.reason)
    return (
        said if limit.split is None else f"{said}; {text.rate(limit.tokens_per_s)} with split {limit.split}"
    )


def _days(answer: WhatIf) -> str:
    now = answer.days(answer.today.tokens_per_s)
    then = answer.days(answer.prediction.tokens_per_s)
    if now is None or then is None:
        return "n/a: the run does not say how many tokens an epoch has"
    return f"{_span(now)} today, {_span(then)} then"


def _span(days: float) -> str:
    return f"{days:.1f} days" if days >= 1 else text.duration(86_400 * days)


def _shares(answer: WhatIf) -> str:
    rows = []
    for stage, parts in answer.prediction.shares.items():
        largest = sorted(parts.items(), key=lambda part: -part[1])[:parts_shown]
        rows.append([stage, ", ".join(f"{name} {share:.0%}" for name, share in largest if share >= 0.005)])
    return table(["stage", "share of its threads' time"], rows)


def _memory(memory: MemoryForecast) -> str:
    if memory.reason is not None:
        return f"n/a: {memory.reason}"
    rows = [
        [
            place.place,
            text.data_size(place.planned_bytes),
            "n/a" if place.corrected_bytes is None else text.data_size(place.corrected_bytes),
            place.why,
        ]
        for place in memory.places
    ]
    return table(["place", "planned", "corrected", "by what was seen"], rows)
