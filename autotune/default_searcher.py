"""Which searcher a search has when none is named. One place, so that a study is read as it was searched."""

from __future__ import annotations

from autotune.searcher import Searcher

# What it does after the starting configuration, for who asks before anything runs (and must not import it).
order_in_words = (
    "what diagnosis would change about the fastest so far, once, where a cause can be cured by knobs",
    "a probe that surely fits and is unlike the start in split, budget and transport, to calibrate by both",
    "what promises most over the fastest so far, by forecast and trials, times its chance to fit into memory",
    "every third run a contender again, until it is clear who leads",
    "neighbours of the fastest, until something faster by the tolerance is unlikely (below 10 %)",
    "what would be recommended, over the documents that need the most memory",
)


def default_searcher() -> Searcher:
    """A new one; searchers keep nothing between calls that the trials do not tell."""
    from autotune.guided.searcher import GuidedSearcher

    return GuidedSearcher()
