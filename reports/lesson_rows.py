"""What a study teaches, as rows of words: knobs, predictions, trade-offs, failures, larger machines.

For terminal, page and tracker alike. Knows nothing of how anything was inferred or of how tables are drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from reports import text

if TYPE_CHECKING:
    from autotune.comparison import Interval
    from autotune.lessons.knob_worth import KnobWorth, KnobWorths
    from autotune.lessons.prediction_record import PredictedTrial, PredictionRecord
    from autotune.lessons.projection import Projections
    from autotune.lessons.taught import Lessons, TrialGroup
    from autotune.lessons.tradeoffs import TradeOff, TradeOffs
    from autotune.result import StudyResult
    from autotune.space import RuledOut

_numbers_shown: Final = 8  # of trials, in a cell
how_worth_is_told: Final = (
    "How much faster the fastest configuration is than itself with that one knob set back, from all trials "
    "together. Worths do not add up where knobs work on the same wait."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobRow:
    """What one knob was worth."""

    name: str  # of the knob
    change: str  # `host → peer`
    worth: str  # `+38 %`
    range: str
    verdict: str
    tone: str
    told_by: str  # how it is known


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionRow:
    """A trial beside what was expected of it."""

    number: int
    predicted: str
    measured: str
    off: str
    inside: str
    fits: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TradeOffRow:
    """A configuration's speed, memory and energy."""

    trial: int
    rate: str
    memory: str
    energy: str
    best: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRow:
    """Trials to which the same happened."""

    count: int
    reason: str
    trials: str
    example: str  # empty where it says no more than the reason


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectionRow:
    """A split over more devices, predicted."""

    devices: int
    split: str
    rate: str
    ratio: str
    days: str
    limit: str
    doubts: str


def signed_gain(ratio: float) -> str:
    """A ratio of speeds as a gain: `+38 %`, `−2.1 %`."""
    return f"{'−' if ratio < 1 else '+'}{text.share(abs(ratio - 1))}"


def show_knob(worth: KnobWorth) -> KnobRow:
    """A row of the table of knobs."""
    ratio = worth.ratio
    words = {"faster": "pays", "slower": "costs", "needed": "needed", "no difference": "no difference"}
    if not worth.is_change:
        words |= {"faster": "rightly kept", "slower": "the other is faster"}
    told_by = worth.reason or (
        f"measured: {text.count_of(worth.runs, 'run')} with this knob alone set back"
        if worth.runs
        else "inferred from the other trials"
    )
    return KnobRow(
        name=worth.path,
        change=f"{worth.other} → {worth.choice}" if worth.is_change else f"{worth.choice}, not {worth.other}",
        worth=text.missing() if ratio is None else signed_gain(ratio.mid),
        range="" if ratio is None else f"{signed_gain(ratio.low)} to {signed_gain(ratio.high)}",
        verdict=words.get(worth.verdict, worth.verdict),
        tone={"faster": "good", "needed": "good", "slower": "bad"}.get(worth.verdict, ""),
        told_by=told_by,
    )


def describe_knobs(worths: KnobWorths) -> tuple[str, ...]:
    """How to read the worths, and how far they can be trusted."""
    if worths.reason is not None:
        return (text.missing(worths.reason),)
    told = [how_worth_is_told]
    if worths.error is not None and worths.inside is not None:
        inside, of = worths.inside
        told.append(
            f"Leaving each configuration out in turn, the model is off by {text.share(worths.error)} "
            f"(median) about it, and {inside} of {of} lie within their {text.interval}."
        )
    changed = [worth.path for worth in worths.knobs if worth.is_change]
    pairs = [(a, b) for a, b in pairwise(changed) if (a, b) not in worths.order]
    told += [f"Which is worth more is not sure: {a} or {b}." for a, b in pairs]
    return tuple(told)


def show_prediction(told: PredictedTrial) -> PredictionRow:
    """A row of the table of predictions."""
    predicted = told.predicted
    rate = text.rate(predicted.tokens_per_s)
    if text.is_known(predicted.low):
        rate += f" ({text.rate_range(predicted.low, predicted.high)})"
    measured = text.rate(told.tokens_per_s, "out of memory" if told.out_of_memory else "not comparable")
    return PredictionRow(
        number=told.number,
        predicted=rate,
        measured=measured,
        off=text.missing() if told.error is None else signed_gain(1 + told.error),
        inside={True: "inside", False: "outside", None: text.missing()}[told.is_inside],
        fits=text.share(predicted.fits),
    )


def describe_predictions(record: PredictionRecord) -> tuple[str, ...]:
    """How well the search knew what it would measure."""
    if record.reason is not None:
        return (text.missing(record.reason),)
    told = []
    if record.median_error is not None and record.worst_error is not None:
        told.append(
            "Each prediction was made before its trial. Over configurations that ran for the first time, "
            f"what was measured was off by {text.share(record.median_error)} (median) and "
            f"{text.share(record.worst_error)} at most."
        )
    if record.coverage is not None:
        told.append(
            f"{record.inside} of {record.judged} figures lie within their {text.interval}; as these are so "
            f"few, the true share may be {_shares(record.coverage)}."
        )
    if record.fits_judged:
        told.append(
            f"{record.out_of_memory} of {record.fits_judged} ran out of memory where "
            f"{record.out_of_memory_expected:.1f} were expected to."
        )
    return tuple(told) or (text.missing("no predicted trial gave a figure"),)


def _shares(interval: Interval) -> str:
    return f"{100 * interval.low:.0f} to {text.share(interval.high)}"


def show_trade_off(row: TradeOff) -> TradeOffRow:
    """A row of the table of trade-offs."""
    memory = text.data_size(row.peak_bytes)
    if row.peak_share is not None:
        memory = f"{text.share(row.peak_share)} of {row.place} ({memory})"
    elif row.peak_bytes is not None:
        memory = f"{memory} on {row.place}"
    return TradeOffRow(
        trial=row.trial,
        rate=text.rate(row.tokens_per_s.mid),
        memory=memory,
        energy=energy(row.energy_j_per_token),
        best=row.is_best,
    )


def energy(joules_per_token: float | None) -> str:
    """`31.4 mJ`, a token."""
    if joules_per_token is None:
        return text.missing()
    if joules_per_token < 1:
        return f"{text.significant(1000 * joules_per_token)}{text.nbsp}mJ"
    return f"{text.significant(joules_per_token)}{text.nbsp}J"


def describe_trade_offs(told: TradeOffs) -> tuple[str, ...]:
    """What is compared, and why the rest is not."""
    compared = ["tokens per second"]
    compared += ["memory at the fullest place"] if told.memory_reason is None else []
    compared += ["energy per token"] if told.energy_reason is None else []
    lines = [
        f"Marked: nothing else measured is at least as good in {text.joined(compared)} and better in one."
    ]
    lines += [f"Memory n/a: {told.memory_reason}."] if told.memory_reason else []
    lines += [f"Energy n/a: {told.energy_reason}."] if told.energy_reason else []
    return tuple(lines)


def show_group(group: TrialGroup) -> GroupRow:
    """A row of the tables of what went wrong."""
    numbers = [str(number) for number in group.trials[:_numbers_shown]]
    more = group.count - len(numbers)
    return GroupRow(
        count=group.count,
        reason=group.reason,
        trials=", ".join(numbers) + (f" and {more} more" if more else ""),
        example="" if group.example in group.reason else group.example,
    )


def show_ruled_out(told: RuledOut) -> GroupRow:
    """A row of the table of what arithmetic ruled out."""
    values = ", ".join(f"{path.rpartition('.')[2]} {value}" for path, value in told.example.items())
    return GroupRow(count=told.count, reason=told.kind, trials="", example=f"{values}: {told.reason}")


def list_projections(result: StudyResult, lessons: Lessons) -> list[ProjectionRow]:
    """The recommended configuration on more devices, from its rate over all its runs."""
    standing = result.standing_of(result.best)
    if standing is None:
        return []
    rows = []
    for told in lessons.projections.splits:
        now = standing.tokens_per_s.mid
        mid, low, high = (now * ratio for ratio in (told.ratio.mid, told.ratio.low, told.ratio.high))
        days = lessons.length.days(mid)
        rows.append(
            ProjectionRow(
                devices=told.devices,
                split=told.split,
                rate=f"{text.rate(mid)} ({text.rate_range(low, high)})",
                ratio=f"{told.ratio.mid:.2f}×",
                days=text.missing(lessons.length.reason) if days is None else text.duration(86_400 * days),
                limit=told.limit,
                doubts="; ".join(told.doubts),
            )
        )
    return rows


def describe_projections(told: Projections) -> str:
    """What the rows are, or why there are none."""
    if told.reason is not None:
        return text.missing(told.reason)
    return (
        "Predictions, not measurements: the forecast of the recommended run, for the splits that it ranks "
        "first on that many devices of the same kind."
    )


def total(groups: Sequence[TrialGroup]) -> int:
    """Trials in all of the groups."""
    return sum(group.count for group in groups)
