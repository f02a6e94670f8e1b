"""How many targets and drafters a run has, as one word: `3-1`, or `colocated-2`.

Knows nothing of devices or of what else is configured.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from dflash.contract.errors import ConfigError

colocated = "colocated"


@dataclass(frozen=True, slots=True)
class Split:
    """Numbers of targets and drafters, and whether each pair of them has one device."""

    targets: int
    drafters: int
    colocated: bool = False

    @classmethod
    @cache  # a space of thousands of configurations asks for a few splits again and again
    def parse(cls, text: str) -> Split:
        """`"3-1"` as Split(3, 1), `"colocated-2"` as Split(2, 2, colocated=True). Raises ConfigError."""
        first, _, second = text.partition("-")
        together = first == colocated
        numbers = (second, second) if together else (first, second)
        if not all(n.isdecimal() and n.isascii() and int(n) > 0 for n in numbers):
            raise ConfigError(
                f"{text!r} is not a split",
                where="pipeline.split",
                found=repr(text),
                expected="TARGETS-DRAFTERS or colocated-DEVICES, each 1 or more, for example 3-1",
            )
        return cls(int(numbers[0]), int(numbers[1]), together)

    @property
    def devices(self) -> int:
        """Devices when nobody shares one but colocated pairs."""
        return self.targets if self.colocated else self.targets + self.drafters

    def __str__(self) -> str:
        return f"{colocated}-{self.targets}" if self.colocated else f"{self.targets}-{self.drafters}"
