"""Tuners of others, each by its own ask and tell, with the choices as it likes them best.

Every one is given the starting configuration first, as a user would. Nothing of ours is imported, so that
this file also runs where only a peer is installed (tuner_peer_process.py). Knows nothing of what is measured.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

Values = dict[str, Any]
Choices = Mapping[str, Sequence[Any]]


class Peer(Protocol):
    """One tuner on one problem: asked and told in turn."""

    def ask(self) -> Values:
        """The configuration to try next."""
        ...

    def tell(self, score: float | None) -> None:
        """What the last one scored, larger is better; None: it ran out of memory."""
        ...


def are_numbers(choices: Sequence[Any]) -> bool:
    """Whether next to each other means alike."""
    return all(isinstance(choice, int | float) and not isinstance(choice, bool) for choice in choices)


class RandomPeer(Peer):
    """Each configuration as likely as any other, none twice."""

    def __init__(self, choices: Choices, baseline: Values, seed: int, trials: int) -> None:
        import random

        self._draw, self._choices = random.Random(seed), choices
        self._seen: set[tuple[Any, ...]] = set()
        self._next: Values | None = dict(baseline)
        self._tries = 100 + trials

    def ask(self) -> Values:
        if self._next is not None:
            values, self._next = self._next, None
        else:
            for _ in range(self._tries):
                values = {name: self._draw.choice(list(each)) for name, each in self._choices.items()}
                if tuple(values.values()) not in self._seen:
                    break
        self._seen.add(tuple(values.values()))
        return values

    def tell(self, score: float | None) -> None:
        """It learns nothing."""


class OptunaPeer(Peer):
    """Optuna: TPE or GP. With `constrained`, memory is a constraint; else running out of it scores 0."""

    def __init__(
        self, choices: Choices, baseline: Values, seed: int, *, sampler: str, constrained: bool
    ) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
        made = {"tpe": optuna.samplers.TPESampler, "gp": optuna.samplers.GPSampler}[sampler]
        self._constrained = constrained
        self._study = optuna.create_study(direction="maximize", sampler=made(seed=seed))
        self._choices = {name: list(each) for name, each in choices.items()}
        self._spread: dict[str, optuna.distributions.BaseDistribution] = {
            name: optuna.distributions.IntDistribution(0, len(each) - 1)
            if are_numbers(each)
            else optuna.distributions.CategoricalDistribution(list(range(len(each))))
            for name, each in self._choices.items()
        }
        self._study.enqueue_trial({name: each.index(baseline[name]) for name, each in self._choices.items()})
        self._slowest: float | None = None
        self._trial: Any = None

    def ask(self) -> Values:
        self._trial = self._study.ask(self._spread)
        return {name: each[self._trial.params[name]] for name, each in self._choices.items()}

    def tell(self, score: float | None) -> None:
        if score is not None:
            self._slowest = min(score, self._slowest if self._slowest is not None else score)
        if self._constrained:
            self._trial.set_constraint("memory", 1.0 if score is None else -1.0)
        # Under a constraint the value of what broke it should not count; a 0 far from all others would.
        lost = (self._slowest or 0.0) if self._constrained else 0.0
        self._study.tell(self._trial, lost if score is None else score)


class SmacPeer(Peer):
    """SMAC3's random forest; running out of memory scores 0."""

    def __init__(self, choices: Choices, baseline: Values, seed: int, trials: int, folder: str) -> None:
        import logging
        from pathlib import Path

        import ConfigSpace as spaces  # noqa: N813 - its name is a module name here
        from smac import HyperparameterOptimizationFacade, Scenario

        logging.disable(logging.WARNING)
        self._choices = {name: list(each) for name, each in choices.items()}
        names = {name: f"k{number}" for number, name in enumerate(self._choices)}
        self._names = names
        space = spaces.ConfigurationSpace(seed=seed)
        for name, each in self._choices.items():
            numeric, other = spaces.OrdinalHyperparameter, spaces.CategoricalHyperparameter
            kind = numeric if are_numbers(each) else other
            space.add(kind(names[name], list(range(len(each)))))
        scenario = Scenario(
            space,
            deterministic=True,
            n_trials=trials,
            seed=seed,
            output_directory=Path(folder),
            name=str(seed),
        )
        first = spaces.Configuration(
            space, {names[name]: each.index(baseline[name]) for name, each in self._choices.items()}
        )
        self._smac = HyperparameterOptimizationFacade(
            scenario,
            lambda config, seed=0: 0.0,
            initial_design=HyperparameterOptimizationFacade.get_initial_design(
                scenario, additional_configs=[first]
            ),
            overwrite=True,
            logging_level=False,
        )
        self._first: Any = first
        self._asked: Any = None

    def ask(self) -> Values:
        from smac.runhistory.dataclasses import TrialInfo

        if self._first is not None:
            self._asked, self._first = TrialInfo(self._first, seed=0), None
        else:
            self._asked = self._smac.ask()
        return {name: each[self._asked.config[self._names[name]]] for name, each in self._choices.items()}

    def tell(self, score: float | None) -> None:
        from smac.runhistory.dataclasses import TrialValue

        self._smac.tell(self._asked, TrialValue(cost=-(score or 0.0), time=1.0))


class AxPeer(Peer):
    """Ax with its own choice of methods; running out of memory scores 0."""

    def __init__(self, choices: Choices, baseline: Values, seed: int) -> None:
        import logging

        from ax.api.client import Client
        from ax.api.configs import ChoiceParameterConfig

        logging.disable(logging.WARNING)
        warnings.filterwarnings("ignore")
        self._choices = {name: list(each) for name, each in choices.items()}
        self._names = {name: f"k{number}" for number, name in enumerate(self._choices)}
        self._client = Client(random_seed=seed)
        self._client.configure_experiment(
            parameters=[
                ChoiceParameterConfig(
                    name=self._names[name],
                    parameter_type="int",
                    values=list(range(len(each))),
                    is_ordered=are_numbers(each) or len(each) == 2,
                )
                for name, each in self._choices.items()
            ]
        )
        self._client.configure_optimization(objective="score")
        self._first: Values | None = dict(baseline)
        self._asked = -1

    def ask(self) -> Values:
        if self._first is not None:
            first, self._first = self._first, None
            indexed = {self._names[name]: each.index(first[name]) for name, each in self._choices.items()}
            self._asked = self._client.attach_trial(parameters=indexed)
            return first
        ((self._asked, indexed),) = self._client.get_next_trials(max_trials=1).items()
        return {name: each[int(indexed[self._names[name]])] for name, each in self._choices.items()}

    def tell(self, score: float | None) -> None:
        self._client.complete_trial(trial_index=self._asked, raw_data={"score": score or 0.0})


Maker = Callable[[Choices, Values, int, int, str], Peer]  # choices, baseline, seed, trials, a scratch folder
peers: Final[dict[str, Maker]] = {
    "random": lambda choices, start, seed, trials, _: RandomPeer(choices, start, seed, trials),
    "optuna-tpe": lambda choices, start, seed, *_: OptunaPeer(
        choices, start, seed, sampler="tpe", constrained=False
    ),
    "optuna-tpe-constrained": lambda choices, start, seed, *_: OptunaPeer(
        choices, start, seed, sampler="tpe", constrained=True
    ),
    "optuna-gp": lambda choices, start, seed, *_: OptunaPeer(
        choices, start, seed, sampler="gp", constrained=False
    ),
    "optuna-gp-constrained": lambda choices, start, seed, *_: OptunaPeer(
        choices, start, seed, sampler="gp", constrained=True
    ),
    "smac": SmacPeer,
    "ax": lambda choices, start, seed, *_: AxPeer(choices, start, seed),
}
needs: Final = {"optuna": "optuna", "smac": "smac", "ax": "ax"}  # {first word of a name: the package}


def package_of(name: str) -> str | None:
    """The package that a peer is of; None: it needs none."""
    return needs.get(name.partition("-")[0])
