"""Which searcher a search has when none is named. One place, so that a study is read as it was searched."""

from __future__ import annotations

from autotune.agenda import Agenda
from autotune.searcher import Searcher


def default_searcher() -> Searcher:
    """A new one; searchers keep nothing between calls that the trials do not tell."""
    return Agenda()
