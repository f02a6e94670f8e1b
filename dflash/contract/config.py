"""The configuration of a training run: its sections together, TOML in and out, dotted overrides.

The embedded default in `embedded.toml` shrinks the published recipe (`sections.py`) so that it trains on two
CPU cores. Cross-field rules live here, so that every command refuses the same things. Knows nothing of torch
or of the machine.
"""

from __future__ import annotations

import dataclasses
import itertools
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from dflash.contract.errors import ConfigError
from dflash.contract.knobs import Knob, find_knob, flatten, knobs_of, parse_assignments
from dflash.contract.sections import (
    DataConfig,
    DevicesConfig,
    DrafterConfig,
    ObjectiveConfig,
    OptimizerConfig,
    PipelineConfig,
    RunConfig,
    TargetConfig,
    TransportChoice,
    TransportConfig,
    WindowConfig,
    colocated_transports,
    presets,
)
from dflash.contract.split import Split
from dflash.contract.tracker_names import parse_trackers


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """Everything a run depends on."""

    target: TargetConfig = field(default_factory=TargetConfig)
    drafter: DrafterConfig = field(default_factory=DrafterConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    data: DataConfig = field(default_factory=DataConfig)
    window: WindowConfig = field(default_factory=WindowConfig)
    pipeline: PipelineConfig = field(default_factory=PipelineConfig)
    transport: TransportConfig = field(default_factory=TransportConfig)
    devices: DevicesConfig = field(default_factory=DevicesConfig)
    run: RunConfig = field(default_factory=RunConfig)

    def __post_init__(self) -> None:
        _check_together(self)

    @property
    def split(self) -> Split:
        return Split.parse(self.pipeline.split)

    @property
    def device_count(self) -> int:
        """Devices the split's roles spread over: one each, or fewer that they share."""
        needed, limit = self.split.devices, self.devices.gpus
        return min(needed, limit) if limit else needed

    @property
    def role_places(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Numbers of the devices of targets and of drafters, wrapping round where they must share."""
        split, count = self.split, self.device_count
        first = 0 if split.colocated else split.targets
        return (
            tuple(i % count for i in range(split.targets)),
            tuple((first + i) % count for i in range(split.drafters)),
        )

    @property
    def transport_choice(self) -> TransportChoice:
        """Queue, path and dispatch in force. A colocated split has its own: states do not leave a device.

        Sums and weights do, so that `auto` goes round bad pairs there as well.
        """
        chosen = (self.transport.queue, self.transport.path, self.transport.dispatch)
        queue, path, dispatch = (
            own if own != "preset" else given
            for own, given in zip(chosen, presets[self.transport.preset], strict=True)
        )
        if self.split.colocated:
            queue, path, dispatch = colocated_transports[path == "auto"]
        return TransportChoice(queue, path, dispatch, self.transport.depth)

    @property
    def gamma(self) -> float:
        """The decay length in force; 0 means no decay."""
        known = {16: 7.0, 10: 5.0, 8: 4.0}
        if self.objective.gamma >= 0:
            return self.objective.gamma
        return known.get(self.drafter.block_size, self.drafter.block_size * 7 / 16)

    def values(self) -> dict[str, Any]:
        """{dotted path: value} of every knob."""
        return flatten(dataclasses.asdict(self))

    def replacing(self, changes: Mapping[str, Any]) -> TrainConfig:
        """A copy with the knobs in `changes` (by dotted path) set and everything checked again."""
        return from_values({**self.values(), **changes})

    def to_toml(self) -> str:
        """The whole configuration as TOML that `load_config` reads back to an equal one."""
        lines: list[str] = []
        for section, body in dataclasses.asdict(self).items():
            lines += [f"[{section}]", *(f"{k} = {_toml_value(v)}" for k, v in body.items()), ""]
        return "\n".join(lines)


all_knobs: tuple[Knob, ...] = knobs_of(TrainConfig)


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return "[" + ", ".join(str(item) for item in value) + "]"
    if isinstance(value, str):
        body = value.replace("\\", "\\\\").replace('"', '\\"')
        return '"' + "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in body) + '"'
    return repr(value)


def from_values(values: Mapping[str, Any]) -> TrainConfig:
    """A checked configuration from {dotted path: value}; knobs not named keep their defaults."""
    sections: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        found = find_knob(name, all_knobs)
        section, leaf = found.path.split(".")
        sections.setdefault(section, {})[leaf] = found.check(value)
    types = {f.name: f.default_factory for f in dataclasses.fields(TrainConfig)}
    return TrainConfig(**{name: types[name](**body) for name, body in sections.items()})  # type: ignore[operator]


def load_config(path: Path | None, assignments: Sequence[str] = ()) -> TrainConfig:
    """The configuration in a TOML file (None: the embedded default) with `knob=value` overrides."""
    if path is None:
        text, where = embedded_toml(), "embedded default"
    else:
        where = str(path)
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise ConfigError("there is no such configuration file", where=where) from None
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"the configuration file cannot be read: {error}", where=where) from None
    try:
        values = flatten(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"the configuration is not valid TOML: {error}", where=where) from None
    return from_values({**_by_path(values), **parse_assignments(assignments, all_knobs)})


def _by_path(values: Mapping[str, Any]) -> dict[str, Any]:
    return {find_knob(name, all_knobs).path: value for name, value in values.items()}


def embedded_toml() -> str:
    """The text of the embedded default configuration."""
    return resources.files("dflash.contract").joinpath("embedded.toml").read_text(encoding="utf-8")


def _check_together(config: TrainConfig) -> None:
    split, budget = config.split, config.pipeline.token_budget
    if budget < config.data.max_length:
        raise ConfigError(
            "the token budget is smaller than the longest document",
            where="pipeline.token_budget",
            found=budget,
            expected=f"data.max_length ({config.data.max_length}) or more",
            remedy="raise pipeline.token_budget or lower data.max_length",
        )
    if config.data.max_length < config.drafter.block_size:
        raise ConfigError(
            "documents are cut shorter than one block",
            where="data.max_length",
            found=config.data.max_length,
            expected=f"drafter.block_size ({config.drafter.block_size}) or more",
        )
    if config.window.tokens < budget * split.drafters:
        raise ConfigError(
            "a window must hold at least one budget for each drafter",
            where="window.tokens",
            found=config.window.tokens,
            expected=f"{budget} × {split.drafters} drafters = {budget * split.drafters} or more",
            remedy="raise window.tokens, lower pipeline.token_budget, or use fewer drafters",
        )
    _check_colocated(config)
    parse_trackers(config.run.trackers)
    taps = config.drafter.taps
    if any(b <= a for a, b in itertools.pairwise(taps)) or any(t < 0 for t in taps):
        raise ConfigError("taps must be ascending layer numbers, each once", where="drafter.taps", found=taps)


def _check_colocated(config: TrainConfig) -> None:
    """What must not be asked of a split that trains each batch where it was made."""
    if not config.split.colocated:
        return
    given = (config.transport.queue, config.transport.path, config.transport.dispatch)
    for name, own, known in zip(
        ("queue", "path", "dispatch"), given, zip(*colocated_transports, strict=True), strict=True
    ):
        if own not in ("preset", *known):
            raise ConfigError(
                "a colocated split copies nothing: each batch is trained where it was made",
                where=f"transport.{name}",
                found=own,
                expected=" or ".join(dict.fromkeys(("preset", *known))),
                remedy=f"leave transport.{name} alone, or use split "
                f"{config.split.targets}-{config.split.drafters} with devices.gpus",
            )
