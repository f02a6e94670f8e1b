"""A space of any names: for searches over something else than a training configuration, such as a simulation.

Where names are ours (`pipeline.split`, `transport.preset` and so on) the pipeline behind a configuration is
known, and the forecast's physics with it. Knows nothing of trials or speed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from autotune.space import Axis, Point
from autotune.telemetry import Values
from dflash.contract.errors import ConfigError

if TYPE_CHECKING:
    from profiler.forecast.setting import Setting


class FreeSpace:
    """Every combination of `choices` that is allowed.

    `allowed` answers for values with True, or with False or a reason where they cannot run. `baseline` is the
    starting configuration, the first combination that is allowed if it is left out. `setting` gives the
    pipeline at values, where the names do not tell it. Raises ConfigError where the baseline lies outside.
    """

    def __init__(
        self,
        choices: Mapping[str, Sequence[Any]],
        baseline: Values | None = None,
        allowed: Callable[[Values], bool | str | None] | None = None,
        setting: Callable[[Values], Setting | None] | None = None,
    ) -> None:
        self.dimensions = tuple(Axis(name, tuple(values)) for name, values in choices.items())
        self.paths = tuple(axis.path for axis in self.dimensions)
        self._allowed, self._setting = allowed, setting
        if baseline is None and not self.configurations:
            raise ConfigError("the space holds no configuration that is allowed")
        self.baseline: dict[str, Any] = dict(self.configurations[0] if baseline is None else baseline)
        reason = self.why_not(self.baseline)
        if reason is not None:
            raise ConfigError("the starting configuration cannot run", found=self.baseline, where=reason)

    @cached_property
    def configurations(self) -> tuple[dict[str, Any], ...]:
        """Every combination that can run, in the order of the choices."""
        every = (
            dict(zip(self.paths, point, strict=True))
            for point in itertools.product(*(axis.choices for axis in self.dimensions))
        )
        return tuple(values for values in every if self.why_not(values) is None)

    @property
    def size(self) -> int:
        """Combinations that can run."""
        return len(self.configurations)

    def point(self, values: Values) -> Point:
        """`values` as a hashable tuple."""
        return tuple(values[path] for path in self.paths)

    def why_not(self, values: Values) -> str | None:
        """Why this combination cannot run, or None when it can."""
        if set(values) != set(self.paths):
            return f"it names {', '.join(values)}, and the space {', '.join(self.paths)}"
        for axis in self.dimensions:
            if values[axis.path] not in axis.choices:
                return f"{axis.path} = {values[axis.path]!r} is none of its choices"
        answer = True if self._allowed is None else self._allowed(values)
        if isinstance(answer, str):
            return answer
        return "not allowed" if answer is not None and not answer else None

    def describe(self) -> dict[str, list[Any]]:
        """{path: choices}, for JSON."""
        return {axis.path: list(axis.choices) for axis in self.dimensions}

    def config(self, values: Values) -> None:
        """None: there is no training configuration behind any `values`."""
        del values

    def setting(self, values: Values) -> Setting | None:
        """The pipeline at `values`: as was told, else by our names where a split is among them."""
        if self._setting is not None:
            return self._setting(values)
        return _named_setting(values)


def _named_setting(values: Values) -> Setting | None:
    from dflash.contract.sections import colocated_transports, presets
    from dflash.contract.split import Split
    from profiler.forecast.setting import Setting

    try:
        split = Split.parse(str(values["pipeline.split"]))
    except (KeyError, ConfigError):
        return None
    preset = values.get("transport.preset", "auto")
    if preset not in presets:
        return None
    queue, path, dispatch = presets[preset]
    if split.colocated:
        queue, path, dispatch = colocated_transports[path == "auto"]
    first = 0 if split.colocated else split.targets
    window = values.get("window.tokens")
    budget = values.get("pipeline.token_budget")
    return Setting(
        target_places=tuple(i % split.devices for i in range(split.targets)),
        drafter_places=tuple((first + i) % split.devices for i in range(split.drafters)),
        shared_queue=queue == "shared",
        path=path,
        dispatch=dispatch,
        depth=int(values.get("transport.depth", 2)),
        prefetch_depth=int(values.get("pipeline.prefetch_depth", 8)),
        lockstep=values.get("pipeline.schedule") == "lockstep",
        token_budget=None if budget is None else int(budget),
        window_tokens=None if window is None else int(window),
    )
