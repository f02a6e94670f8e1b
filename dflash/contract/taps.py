"""Which target layers are tapped. Knows layer numbers only, nothing of models.

A tap `k` means the residual stream after decoder layer `k`, counted from 0, before the final norm.
"""

from __future__ import annotations

import itertools

from dflash.contract.errors import ConfigError
from dflash.contract.sections import DrafterConfig


def choose_taps(layers: int, count: int) -> tuple[int, ...]:
    """`count` taps spread over a target of `layers` layers by the published formula, ascending.

    One tap sits in the middle; several start at layer 1 and end three before the last. Raises ConfigError
    when the target is too shallow for that many different taps.
    """
    if count == 1:
        return (layers // 2,)
    taps = tuple(round(1 + i * (layers - 4) / (count - 1)) for i in range(count))
    if any(b <= a for a, b in itertools.pairwise(taps)) or taps[0] < 0:
        raise ConfigError(
            "the target is too shallow for that many taps",
            where="drafter.tap_count",
            found=f"{count} taps of {layers} layers",
            expected=f"at most {max(1, layers - 3)}",
            remedy="lower drafter.tap_count or list layers in drafter.taps",
        )
    return taps


def resolve_taps(config: DrafterConfig, layers: int) -> tuple[int, ...]:
    """The taps in force: those listed in drafter.taps, else `choose_taps`. Raises ConfigError."""
    if not config.taps:
        return choose_taps(layers, config.tap_count)
    if config.taps[-1] >= layers:
        raise ConfigError(
            "a tap lies past the last layer of the target",
            where="drafter.taps",
            found=list(config.taps),
            expected=f"layer numbers from 0 to {layers - 1}",
        )
    return config.taps
