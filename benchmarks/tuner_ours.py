"""Our own searches in the contest: the default one, and the same without one of its parts.

Knows nothing of problems or of scores.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from autotune.agenda import Agenda
from autotune.searcher import Searcher


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A search of ours. `paired`: the runner interleaves two configurations where it is asked to."""

    make: Callable[[], Searcher]
    paired: bool = True
    told: str  # what it is, in a few words


entries: Final[dict[str, Entry]] = {
    "agenda": Entry(make=Agenda, told="remedies, neighbours, TPE; no model"),
}
