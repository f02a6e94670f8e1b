"""Which searcher a search has when none is named. One place, so that a study is read as it was searched."""

from __future__ import annotations

from autotune.searcher import Searcher

# What it does after the starting configuration, for who asks before anything runs (and must not import it).
order_in_words = (
    "what diagnosis recommends for the fastest so far: the remedies of each cause found, dearest first",
    "neighbours of the fastest: one knob moved one step, each knob once before any twice",
    "what Optuna's TPE suggests over the whole space",
    "the two fastest and the start again, in mirrored order",
)


def default_searcher() -> Searcher:
    """A new one; searchers keep nothing between calls that the trials do not tell."""
    from autotune.agenda import Agenda

    return Agenda()
