"""The configurations a search may try: knobs, their choices, and why a combination is impossible.

`Space` is what a search needs of one; `SearchSpace` is the one over a training configuration. A knob that
changes what is trained is a dimension only where that was asked for in so many words. Impossible combinations
are known before they are asked: by the rules of TrainConfig itself, the number of devices, what differs from
another one in name only, and memory as far as arithmetic goes. Knows nothing of trials or speed.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from autotune.arithmetic import Limits, MemoryArithmetic, set_up_arithmetic
from autotune.shortages import Shortages
from autotune.telemetry import Values
from autotune.twins import Twins
from dflash.contract.config import TrainConfig, all_knobs
from dflash.contract.errors import ConfigError, DeviceError, DFlashError
from dflash.contract.knobs import find_knob
from dflash.contract.model_shapes import UnknownShape

if TYPE_CHECKING:
    from profiler.forecast.setting import Setting

Point = tuple[Any, ...]  # the same as a tuple in the order of the dimensions: hashable


@dataclass(frozen=True, slots=True)
class Axis:
    """A name and the values it may take, in an order that means something where they are numbers."""

    path: str
    choices: tuple[Any, ...]

    def __post_init__(self) -> None:
        if not self.choices or len(set(self.choices)) != len(self.choices):
            raise ConfigError("a searched knob needs choices, each once", where=self.path, found=self.choices)

    @property
    def is_ordered(self) -> bool:
        """True where the choices are numbers, so that next to each other means alike."""
        return all(
            isinstance(choice, int | float) and not isinstance(choice, bool) for choice in self.choices
        )


class Space(Protocol):
    """What a search needs of the configurations that it may try."""

    @property
    def dimensions(self) -> tuple[Axis, ...]:
        """The searched knobs with their choices."""
        ...

    @property
    def baseline(self) -> dict[str, Any]:
        """The starting configuration: the first to be tried, the one that gains are told against."""
        ...

    @property
    def configurations(self) -> tuple[dict[str, Any], ...]:
        """Every combination that can run."""
        ...

    @property
    def size(self) -> int:
        """How many those are."""
        ...

    @property
    def paths(self) -> tuple[str, ...]:
        """The names of the knobs, in the order of the dimensions."""
        ...

    def point(self, values: Values) -> Point:
        """`values` as a hashable tuple, in that order."""
        ...

    def why_not(self, values: Values) -> str | None:
        """Why this combination cannot run, or None when it can."""
        ...

    def describe(self) -> dict[str, list[Any]]:
        """{path: choices}, for JSON."""
        ...

    def config(self, values: Values) -> TrainConfig | None:
        """The whole training configuration at `values`; None where there is none behind the space."""
        ...

    def setting(self, values: Values) -> Setting | None:
        """The pipeline at `values`, as the forecast knows it; None where nothing is known of its physics."""
        ...


# They say what the machine or the run is; varying them would measure something else, or nothing.
given_sections = ("devices", "run")
searchable_devices = ("devices.gpus", "devices.cpu_threads")


class Dimension(Axis):
    """An axis that is a knob of the configuration.

    `changes_training`: it was asked to vary what is trained; without it such a knob is refused.
    """

    __slots__ = ()

    def __init__(self, path: str, choices: Iterable[Any], *, changes_training: bool = False) -> None:
        knob = find_knob(path, all_knobs)
        if not knob.meta.neutral and not changes_training:
            raise ConfigError(
                f"{knob.path} changes what is trained, so a search may not vary it",
                where=knob.path,
                remedy="set it in the configuration instead",
            )
        is_given = knob.path.partition(".")[0] in given_sections and knob.path not in searchable_devices
        if is_given or knob.is_list or knob.path.startswith("data."):
            raise ConfigError(
                f"{knob.path} cannot be searched: "
                + ("a list is no choice" if knob.is_list else "it says what is run, not how"),
                where=knob.path,
                remedy="set it in the configuration instead",
            )
        Axis.__init__(self, knob.path, tuple(knob.check(choice) for choice in choices))


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why a combination cannot run, or need not."""

    kind: str  # the same for all that fail alike
    reason: str


@dataclass(frozen=True, slots=True)
class RuledOut:
    """Combinations that fail alike."""

    kind: str
    count: int
    example: Mapping[str, Any]  # the first one's values
    reason: str  # the first one's


too_many_devices = "more devices than there are"
no_difference = "the same as another one"
too_large = "does not fit into memory"


@dataclass(frozen=True)
class SearchSpace:
    """Dimensions over a base configuration, on a machine with `devices` devices to spread over."""

    dimensions: tuple[Dimension, ...]
    base: TrainConfig
    devices: int
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        paths = [dimension.path for dimension in self.dimensions]
        if not paths:
            raise ConfigError("nothing is left to search: every knob has one value")
        if len(set(paths)) != len(paths):
            raise ConfigError("a knob is searched twice", found=", ".join(paths))
        for dimension in self.dimensions:
            value = self.base.values()[dimension.path]
            if value not in dimension.choices:
                raise ConfigError(
                    "the starting configuration lies outside the search space",
                    where=dimension.path,
                    found=repr(value),
                    expected=f"one of {', '.join(map(repr, dimension.choices))}",
                )
        obstacle = self.find_obstacle(self.baseline)
        if obstacle is not None:
            raise self._refusal(obstacle)

    def _refusal(self, obstacle: Obstacle) -> DFlashError:
        if not self.configurations:
            return self._nothing_runs()
        in_memory = obstacle.kind == too_large
        return DeviceError(
            "the starting configuration cannot run on this machine",
            where="memory" if in_memory else "pipeline.split",
            found=obstacle.reason,
            remedy=f"start from one that can, for example {self._nearest_start()}",
        )

    def _nearest_start(self) -> str:
        """The settings that lead to one that can run, as few as will do."""
        start = self.baseline

        def changes(values: Values) -> list[str]:
            return [f"--set {path}={value}" for path, value in values.items() if value != start[path]]

        return " ".join(changes(min(self.configurations, key=lambda values: len(changes(values)))))

    def _nothing_runs(self) -> DFlashError:
        """No usage is at fault: whatever is asked for, nothing runs."""
        rows = [f"{out.count} combinations: {out.kind} (for example {out.reason})" for out in self.ruled_out]
        remedy = "widen the space, or start from another configuration"
        if any(out.kind == too_large for out in self.ruled_out):
            remedy = (
                "GPUs with more memory, or a smaller target: the smallest combination needs "
                f"{self._smallest()}"
            )
        return DFlashError(
            "no combination of the space can run on this machine, so nothing is recommended",
            found="\n    ".join(["", *rows]),
            remedy=remedy,
        )

    def _smallest(self) -> str:
        """The least that any combination needs of one place."""
        arithmetic, needs = self.arithmetic, []
        assert isinstance(arithmetic, MemoryArithmetic)
        for values in self._every():
            obstacle = self.find_obstacle(values)
            if obstacle is not None and obstacle.kind == too_large:
                ledger = arithmetic.ledger(self.config(values), likely=False)
                needs.append(max(ledger.needed_bytes(place) for place in ledger.places))
        return f"at least {min(needs) / 1e9:.1f} GB on one place"

    @property
    def baseline(self) -> dict[str, Any]:
        """The values of the starting configuration."""
        values = self.base.values()
        return {dimension.path: values[dimension.path] for dimension in self.dimensions}

    @property
    def points(self) -> int:
        """Combinations, possible or not."""
        return math.prod(len(dimension.choices) for dimension in self.dimensions)

    @property
    def size(self) -> int:
        """Combinations that can run."""
        return len(self.configurations)

    @property
    def configurations(self) -> tuple[dict[str, Any], ...]:
        """Every combination that can run, in the order of the choices."""
        return self._survey[0]

    @property
    def ruled_out(self) -> tuple[RuledOut, ...]:
        """Those that cannot, or need not, by what is in their way, most common first."""
        return self._survey[1]

    @cached_property
    def _survey(self) -> tuple[tuple[dict[str, Any], ...], tuple[RuledOut, ...]]:
        possible: list[dict[str, Any]] = []
        others: dict[str, RuledOut] = {}
        for values in self._every():
            obstacle = self.find_obstacle(values)
            if obstacle is None:
                possible.append(values)
                continue
            known = others.get(obstacle.kind, RuledOut(obstacle.kind, 0, values, obstacle.reason))
            others[obstacle.kind] = dataclasses.replace(known, count=known.count + 1)
        return tuple(possible), tuple(sorted(others.values(), key=lambda each: -each.count))

    def _every(self) -> Iterator[dict[str, Any]]:
        """All combinations, possible or not, in the order of the choices."""
        for point in itertools.product(*(dimension.choices for dimension in self.dimensions)):
            yield dict(zip(self.paths, point, strict=True))

    @property
    def paths(self) -> tuple[str, ...]:
        """The names of the knobs, in the order of the dimensions."""
        return tuple(dimension.path for dimension in self.dimensions)

    @property
    def changes_training(self) -> tuple[str, ...]:
        """Searched knobs that change what is trained: losses of trials that differ in them say nothing."""
        return tuple(path for path in self.paths if not find_knob(path, all_knobs).meta.neutral)

    def point(self, values: Values) -> Point:
        """`values` as a hashable tuple."""
        return tuple(values[path] for path in self.paths)

    def config(self, values: Values) -> TrainConfig:
        """The whole configuration at `values`. Raises ConfigError where the combination is impossible."""
        # Each choice was checked when its dimension was made, so only the rules between knobs are left.
        # A space has thousands of points: checking every knob of each again would take seconds.
        sections: dict[str, dict[str, Any]] = {}
        for path, value in values.items():
            section, leaf = path.split(".")
            sections.setdefault(section, {})[leaf] = value
        replaced = {
            name: dataclasses.replace(getattr(self.base, name), **body) for name, body in sections.items()
        }
        return dataclasses.replace(self.base, **replaced)

    def why_not(self, values: Values) -> str | None:
        """Why this combination cannot run, or None when it can."""
        obstacle = self.find_obstacle(values)
        return None if obstacle is None else obstacle.reason

    def find_obstacle(self, values: Values) -> Obstacle | None:
        """What is in the way of this combination, or None when it can run."""
        try:
            config = self.config(values)
        except ConfigError as error:
            return Obstacle(
                error.what, f"{error.what} ({error.where}: {error.found}, expected {error.expected})"
            )
        if config.device_count > self.devices:
            reason = f"split {config.split} needs {config.device_count} devices, {self.devices} are there"
            return Obstacle(too_many_devices, reason)
        double = self._twins.find(config)
        if double is not None:
            return Obstacle(no_difference, double)
        shortage = self._shortages.find(values)
        return None if shortage is None else Obstacle(too_large, shortage)

    @cached_property
    def _shortages(self) -> Shortages:
        return self._shortages_by(lambda arithmetic, config: arithmetic.why_not(config))

    @cached_property
    def _unlikely(self) -> Shortages:
        return self._shortages_by(lambda arithmetic, config: arithmetic.why_unlikely(config))

    def _shortages_by(self, ask: Callable[[MemoryArithmetic, TrainConfig], str | None]) -> Shortages:
        def answer(values: Values) -> str | None:
            arithmetic = self.arithmetic
            return None if isinstance(arithmetic, UnknownShape) else ask(arithmetic, self.config(values))

        return Shortages({dimension.path: dimension.choices for dimension in self.dimensions}, answer)

    def why_unlikely(self, values: Values) -> str | None:
        """Why the longest documents would be too much for a combination that may run, or None."""
        return self._unlikely.find(values)

    @cached_property
    def arithmetic(self) -> MemoryArithmetic | UnknownShape:
        """What memory each combination needs, or why that is not known."""
        return set_up_arithmetic(self.base, self.limits)

    @cached_property
    def _twins(self) -> Twins:
        return Twins(self.base, {dimension.path: dimension.choices for dimension in self.dimensions})

    def setting(self, values: Values) -> Setting:
        """The pipeline at `values`, as the forecast knows it."""
        from profiler.forecast.setting import Setting

        return Setting.of(self.config(values))

    def describe(self) -> dict[str, list[Any]]:
        """{path: choices}, for JSON."""
        return {dimension.path: list(dimension.choices) for dimension in self.dimensions}


def trains_the_same(space: Space, ours: Values, theirs: Values) -> bool:
    """Whether two combinations train the same thing, so that their losses must agree."""
    changing = space.changes_training if isinstance(space, SearchSpace) else ()
    return all(ours.get(path) == theirs.get(path) for path in changing)
