"""The configurations a search may try: knobs, their choices, and why a combination is impossible.

`Space` is what a search needs of one; `SearchSpace` is the one over a training configuration. In it only
knobs declared neutral are accepted, so no search can change what is trained. Impossible combinations are known
before they are asked: the rules are those of TrainConfig itself, plus the number of devices. Knows nothing of
trials or speed.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from autotune.machine import Machine
from autotune.telemetry import Values
from dflash.contract.config import TrainConfig, all_knobs
from dflash.contract.errors import ConfigError, DeviceError
from dflash.contract.knobs import find_knob
from dflash.contract.sections import presets
from dflash.contract.split import Split

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

    def steps_from(self, value: Any) -> tuple[Any, ...]:
        """The choices one step away: the next ones up and down, or all others where there is no order."""
        if not self.is_ordered:
            return tuple(choice for choice in self.choices if choice != value)
        ordered = sorted(self.choices)
        at = ordered.index(value)
        return tuple(ordered[i] for i in (at + 1, at - 1) if 0 <= i < len(ordered))


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


class Dimension(Axis):
    """An axis that is a knob of the configuration; only knobs that leave the training signal alone."""

    __slots__ = ()

    def __post_init__(self) -> None:
        knob = find_knob(self.path, all_knobs)
        if not knob.meta.neutral:
            raise ConfigError(
                f"{self.path} changes what is trained, so a search may not vary it",
                where=self.path,
                remedy="set it in the configuration instead",
            )
        Axis.__post_init__(self)
        for choice in self.choices:
            knob.check(choice)


@dataclass(frozen=True)
class SearchSpace:
    """Dimensions over a base configuration, on a machine with `devices` devices to spread over."""

    dimensions: tuple[Dimension, ...]
    base: TrainConfig
    devices: int

    def __post_init__(self) -> None:
        paths = [dimension.path for dimension in self.dimensions]
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
        reason = self.why_not(self.baseline)
        if reason is not None:
            raise DeviceError(
                "the starting configuration cannot run on this machine",
                where="pipeline.split",
                found=reason,
                remedy="start from a smaller split, for example --set pipeline.split=1-1, or colocated-1 "
                "on a single device",
            )

    @property
    def baseline(self) -> dict[str, Any]:
        """The values of the starting configuration."""
        values = self.base.values()
        return {dimension.path: values[dimension.path] for dimension in self.dimensions}

    @property
    def points(self) -> int:
        """Combinations, possible or not."""
        product = 1
        for dimension in self.dimensions:
            product *= len(dimension.choices)
        return product

    @property
    def size(self) -> int:
        """Combinations that can run."""
        return len(self.configurations)

    @cached_property
    def configurations(self) -> tuple[dict[str, Any], ...]:
        """Every combination that can run, in the order of the choices."""
        every = (
            dict(zip(self.paths, point, strict=True))
            for point in itertools.product(*(dimension.choices for dimension in self.dimensions))
        )
        return tuple(values for values in every if self.why_not(values) is None)

    @property
    def paths(self) -> tuple[str, ...]:
        """The names of the knobs, in the order of the dimensions."""
        return tuple(dimension.path for dimension in self.dimensions)

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
        try:
            config = self.config(values)
        except ConfigError as error:
            return f"{error.what} ({error.where}: {error.found}, expected {error.expected})"
        if config.device_count > self.devices:
            return f"split {config.split} needs {config.device_count} devices, {self.devices} are there"
        if config.split.colocated and config.transport.preset != self._preset_of_colocated:
            return f"split {config.split} copies nothing, so transport.preset makes no difference"
        return None

    @cached_property
    def _preset_of_colocated(self) -> str:
        """The one preset that colocated splits are tried with: the one whose neighbours they are."""
        given = self.base.transport.preset
        choices = next((d.choices for d in self.dimensions if d.path == "transport.preset"), (given,))
        return "peer" if "peer" in choices and not self.base.split.colocated else given

    def setting(self, values: Values) -> Setting:
        """The pipeline at `values`, as the forecast knows it."""
        from profiler.forecast.setting import Setting

        return Setting.of(self.config(values))

    def describe(self) -> dict[str, list[Any]]:
        """{path: choices}, for JSON."""
        return {dimension.path: list(dimension.choices) for dimension in self.dimensions}


def default_space(base: TrainConfig, machine: Machine, *, max_logical: int = 3) -> SearchSpace:
    """The space a machine suggests: splits, budgets, prefetch depth, transport and its depth.

    Without GPUs the splits are over logical devices, at most `max_logical` of them (all share the CPU).
    The base's own value is always among the choices. Raises DeviceError when the base cannot run here.
    """
    devices = _device_count(base, machine, max_logical)
    budgets = _powers_of_two(base.data.max_length, base.window.tokens)
    overridden = {base.transport.queue, base.transport.path, base.transport.dispatch} != {"preset"}
    # `auto` is `peer` but for pairs that are better off through the host: one of the two is enough.
    twin = "peer" if base.transport.preset == "auto" else "auto"
    measured = [preset for preset in presets if preset != twin]
    dimensions = (
        Dimension("pipeline.split", _with(base.pipeline.split, _splits(devices))),
        Dimension("pipeline.token_budget", _sorted_with(base.pipeline.token_budget, budgets)),
        # Where the base overrides parts of the preset, a preset no longer says what would be measured.
        Dimension(
            "transport.preset",
            (base.transport.preset,) if overridden else _with(base.transport.preset, measured),
        ),
        Dimension("transport.depth", _sorted_with(base.transport.depth, (1, 2, 4))),
        Dimension("pipeline.prefetch_depth", _sorted_with(base.pipeline.prefetch_depth, (2, 4, 8))),
    )
    return SearchSpace(dimensions, base, devices)


def is_emulated(base: TrainConfig, machine: Machine) -> bool:
    """True where the trainer will run on logical devices."""
    return base.devices.kind == "logical" or (base.devices.kind == "auto" and not machine.gpus)


def _device_count(base: TrainConfig, machine: Machine, max_logical: int) -> int:
    if base.devices.kind == "cuda" and not machine.gpus:
        raise DeviceError(
            "the configuration asks for CUDA devices and this machine shows none",
            where="devices.kind",
            found=machine.gpu_reason or "no GPU",
            remedy="--set devices.kind=logical searches over emulated devices",
        )
    if is_emulated(base, machine):
        return max(max_logical, base.device_count)
    return len(machine.gpus)


def _splits(devices: int) -> list[str]:
    """Every split that fits, fewest devices first, then fewest drafters, colocated ones behind others."""
    apart = [Split(t, d) for t in range(1, devices) for d in range(1, devices - t + 1)]
    together = [Split(n, n, colocated=True) for n in range(1, devices + 1)]
    order = sorted([*apart, *together], key=lambda split: (split.devices, split.colocated, split.drafters))
    return [str(split) for split in order]


def _powers_of_two(low: int, high: int) -> list[int]:
    """Powers of two from `low` up to `high`, both included."""
    first = 1 << (low - 1).bit_length()
    return [first << i for i in range(high.bit_length()) if first << i <= high]


def _with(value: Any, choices: Iterable[Any]) -> tuple[Any, ...]:
    """The choices in their order, with `value` in front where it is missing."""
    choices = tuple(choices)
    return choices if value in choices else (value, *choices)


def _sorted_with(value: int, choices: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted({value, *choices}))
