"""Which configuration to try next, from what the trials so far have shown.

In this order: the starting configuration; what diagnosis recommends for the fastest one so far; its
neighbours, one knob at a time; then whatever Optuna's TPE suggests over the whole space. No configuration
is proposed twice, nor one that a smaller one's out-of-memory failure rules out. Pure functions: the same
trials give the same proposal, so a search that was killed goes on as it would have gone on.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import optuna
from optuna.distributions import CategoricalDistribution

from autotune.history import find_incumbent
from autotune.space import Space
from autotune.telemetry import FailureKind, Values
from autotune.trial import Trial

seed = 0
suggestions_asked = 64  # of TPE, before the first configuration left over is taken


@dataclass(frozen=True, slots=True)
class Proposal:
    """A configuration to try, and why."""

    values: Values
    why: str


def propose(space: Space, trials: Sequence[Trial]) -> Proposal | None:
    """The next configuration to try, or None when all that can run have been tried.

    `trials` are those that count: over, and no repeats.
    """
    taken = {space.point(trial.values) for trial in trials}
    for proposal in _candidates(space, trials):
        point = space.point(proposal.values)
        if point in taken:
            continue
        if space.why_not(proposal.values) is None and not exceeds_memory(proposal.values, trials):
            return proposal
        taken.add(point)
    return None


def exceeds_memory(values: Values, trials: Iterable[Trial]) -> bool:
    """True where a trial that asked for no more memory already ran out of it.

    At the same split that is one with a smaller token budget, or with the same budget and transport and no
    deeper queues.
    """
    return any(
        trial.failure is FailureKind.out_of_memory and _asks_no_more(trial.values, values) for trial in trials
    )


def _asks_no_more(failed: Values, values: Values) -> bool:
    def same(path: str) -> bool:
        return bool(failed.get(path) == values.get(path))

    def at_most(path: str) -> bool:
        return bool(failed.get(path, 0) <= values.get(path, 0))

    budget = "pipeline.token_budget"
    if budget not in values:  # a space of other names: nothing is known of what asks for more
        return failed == values
    if not same("pipeline.split") or not at_most(budget):
        return False
    if not same(budget):
        return True
    return same("transport.preset") and at_most("transport.depth") and at_most("pipeline.prefetch_depth")


def _candidates(space: Space, trials: Sequence[Trial]) -> Iterator[Proposal]:
    yield Proposal(space.baseline, "the starting configuration")
    incumbent = find_incumbent(trials)
    if incumbent is not None:
        yield from _remedies(space, incumbent)
        yield from _neighbours(space, incumbent)
    yield from _suggestions(space, trials)
    yield from (Proposal(values, "the last ones left") for values in space.configurations)


def _remedies(space: Space, incumbent: Trial) -> Iterator[Proposal]:
    """Each cause's remedy as a whole, where all it asks for is among the choices."""
    choices = {dimension.path: dimension.choices for dimension in space.dimensions}
    for cause in incumbent.measurement.causes if incumbent.measurement else ():
        changes = cause.remedy
        if changes and all(value in choices.get(path, ()) for path, value in changes.items()):
            text = ", ".join(f"{path} = {value}" for path, value in changes.items())
            yield Proposal(
                {**incumbent.values, **changes},
                f"the remedy for {cause.name} in trial {incumbent.number}: {text}",
            )


def _neighbours(space: Space, incumbent: Trial) -> Iterator[Proposal]:
    """One knob moved one step. One step of every knob first, so that each shows early what it does."""
    moves = [
        [(dimension.path, value) for value in dimension.steps_from(incumbent.values[dimension.path])]
        for dimension in space.dimensions
    ]
    for move in itertools.chain.from_iterable(itertools.zip_longest(*moves)):
        if move is not None:
            path, value = move
            yield Proposal(
                {**incumbent.values, path: value},
                f"a neighbour of trial {incumbent.number}: {path} {incumbent.values[path]} → {value}",
            )


def _suggestions(space: Space, trials: Sequence[Trial]) -> Iterator[Proposal]:
    """What TPE makes of the trials, asked of a study in memory so that nothing it samples is stored."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    distributions = {d.path: CategoricalDistribution(d.choices) for d in space.dimensions}
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))
    for trial in trials:
        study.add_trial(
            optuna.trial.create_trial(
                params=dict(trial.values),
                distributions=distributions,  # type: ignore[arg-type]  # dict is invariant
                value=trial.score,
            )
        )
    for _ in range(suggestions_asked):
        asked = study.ask(distributions)  # type: ignore[arg-type]
        yield Proposal(asked.params, "suggested by TPE over the whole space")
        study.tell(asked, 0.0)  # it was of no use, or we would not be here
